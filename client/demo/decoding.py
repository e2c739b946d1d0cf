"""A decoder that leaves penalties and beam search to the service, and checks what it gets back."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from logitd.client import Beam, Penalties, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as AnySequence

    import numpy.typing as npt

    from logitd.client import Client, Hypothesis
    from logitd.client.demo.models import LanguageModel

__all__ = [
    "BeamResult",
    "CheckError",
    "Decoded",
    "GreedyResult",
    "StepTimes",
    "decode_greedily",
    "search_beams",
    "timed",
]

_LOG_PROB_TOLERANCE = 0.01


class CheckError(RuntimeError):
    """The service's answer is not what the demo computed by itself."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long the steps of a decode took, in seconds."""

    model: list[float] = field(default_factory=list)
    service: list[float] = field(default_factory=list)

    @property
    def model_ms(self) -> float:
        """The median, in milliseconds."""
        return 1e3 * median(self.model)

    @property
    def service_ms(self) -> float:
        """The median, in milliseconds, the way there and back included."""
        return 1e3 * median(self.service)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The output of one sequence."""

    token_ids: list[int]
    ended: bool
    """By the end-of-sequence token, which is not among the ids."""


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """The outputs of the sequences of one batch."""

    outputs: list[Decoded]
    times: StepTimes
    num_unchanged_rows: int
    """Rows without penalties: each came back with the very bits that were sent."""
    num_changed_logits: int
    """Logits of the other rows that came back changed."""


@dataclass(frozen=True, slots=True)
class BeamResult:
    """The hypotheses of one search, best first."""

    hypotheses: tuple[Hypothesis, ...]
    times: StepTimes
    greatest_difference: float
    """Between a hypothesis' log-probability as the service has it and as the model alone gives it."""


def decode_greedily(
    client: Client, model: LanguageModel, prompt: str, penalties: AnySequence[Penalties], max_new_tokens: int
) -> GreedyResult:
    """Decodes one sequence for each of the penalties, all in one batch.

    Raises:
        CheckError: a row without penalties came back changed.
    """
    prompt_ids, eos = model.encode(prompt), model.eos_token_id
    sequences = [Sequence(prompt_ids, each, max_new_tokens, eos_token_ids=[eos]) for each in penalties]
    is_neutral = np.array([each == Penalties() for each in penalties])
    times, session = StepTimes(), model.session()
    chosen: list[npt.NDArray[np.int64]] = []
    num_changed = 0
    with client.create_batch(sequences, vocab_size=model.vocab_size) as batch:
        with timed(times.model):
            logits = session.start(prompt_ids, len(penalties))
        for _ in range(max_new_tokens):
            # One round trip a step: the tokens of the last one are counted before these logits are processed.
            with timed(times.service):
                processed = batch.apply(logits, chosen[-1] if chosen else None)
            _check_unchanged(processed[is_neutral], logits[is_neutral])
            num_changed += int(np.count_nonzero(processed != logits))
            chosen.append(processed.argmax(axis=1))
            if (np.array(chosen) == eos).any(axis=0).all():
                break
            with timed(times.model):
                logits = session.step(range(len(penalties)), chosen[-1].tolist())
    outputs = [_until(eos, row.tolist()) for row in np.array(chosen).T]
    return GreedyResult(outputs, times, len(chosen) * int(is_neutral.sum()), num_changed)


def search_beams(client: Client, model: LanguageModel, prompt: str, width: int, max_new_tokens: int) -> BeamResult:
    """Searches with `width` beams by the HF rule.

    Raises:
        CheckError: a hypothesis' log-probability is not what the model alone gives it.
    """
    prompt_ids = model.encode(prompt)
    search = Sequence(prompt_ids, None, max_new_tokens, eos_token_ids=[model.eos_token_id], beam=Beam(width))
    times, session = StepTimes(), model.session()
    with client.create_beam_batch([search], vocab_size=model.vocab_size) as batch:
        with timed(times.model):
            logits = session.start(prompt_ids)
        while True:
            with timed(times.service):
                step = batch.beam_step(logits)
            if step.is_done:
                break
            with timed(times.model):
                logits = session.step(step.parent_rows.tolist(), step.token_ids.tolist())
    hypotheses = step.searches[0].hypotheses
    differences = [abs(each.log_prob_sum - _log_probability(model, prompt_ids, each)) for each in hypotheses]
    if not max(differences) <= _LOG_PROB_TOLERANCE:
        raise CheckError(f"log-probabilities must agree to {_LOG_PROB_TOLERANCE}, got the differences {differences}")
    return BeamResult(hypotheses, times, max(differences))


def _check_unchanged(processed: npt.NDArray[np.float32], logits: npt.NDArray[np.float32]) -> None:
    if processed.tobytes() != logits.tobytes():
        raise CheckError("without penalties the logits must come back bit by bit, got others")


def _log_probability(model: LanguageModel, prompt_ids: list[int], hypothesis: Hypothesis) -> float:
    """The hypothesis' log-probability from the model alone: no service, no cache."""
    token_ids = hypothesis.token_ids.tolist()
    logits = model.next_logits_batch([prompt_ids + token_ids[:length] for length in range(len(token_ids))])
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(log_probs[range(len(token_ids)), token_ids].sum())


def _until(eos: int, token_ids: list[int]) -> Decoded:
    end = token_ids.index(eos) if eos in token_ids else len(token_ids)
    return Decoded(token_ids[:end], ended=end < len(token_ids))


@contextlib.contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Appends how long the block took."""
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)
