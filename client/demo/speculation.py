"""Speculative decoding: a cheap drafter proposes tokens, the model sees all of them in one pass, and the service
penalises each position with its own history, so that the text is that of plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from logitd.client import Sequence
from logitd.client.demo.decoding import CheckError, Decoded, StepTimes, timed

if TYPE_CHECKING:
    from collections.abc import Sequence as AnySequence

    from logitd.client import Client, Penalties
    from logitd.client.demo.models import LanguageModel

__all__ = ["Drafter", "LookupDrafter", "ModelDrafter", "SpeculativeResult", "check_same_text", "decode_with_drafts"]


class Drafter(Protocol):
    """Guesses what follows."""

    def draft(self, history: AnySequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow the history."""
        ...


class ModelDrafter:
    """The greedy text of a smaller model of the same vocabulary."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def draft(self, history: AnySequence[int], count: int) -> list[int]:
        """Exactly `count` tokens."""
        tokens = list(history)
        for _ in range(count):
            tokens.append(int(self._model.next_logits(tokens).argmax()))
        return tokens[len(history) :]


class LookupDrafter:
    """What followed the last tokens where they stood in the text before: no model at all."""

    def __init__(self, longest: int = 3) -> None:
        """Looks for the last `longest` tokens first, then for fewer."""
        self._longest = longest

    def draft(self, history: AnySequence[int], count: int) -> list[int]:
        """None where the last token is new."""
        tokens = list(history)
        for length in range(min(self._longest, len(tokens) - 1), 0, -1):
            wanted = tokens[-length:]
            for end in range(len(tokens) - 1, length - 1, -1):
                if tokens[end - length : end] == wanted:
                    return tokens[end : end + count]
        return []


@dataclass(frozen=True, slots=True)
class SpeculativeResult:
    """The output of one sequence."""

    output: Decoded
    times: StepTimes
    num_accepted: list[int]
    """Of each step: how many drafts were accepted; one token more came with them."""


def decode_with_drafts(
    client: Client,
    model: LanguageModel,
    drafter: Drafter,
    prompt: str,
    penalties: Penalties,
    max_new_tokens: int,
    num_drafts: int,
) -> SpeculativeResult:
    """Decodes greedily; a step verifies up to `num_drafts` drafts, and commits those accepted and one token more."""
    prompt_ids, eos = model.encode(prompt), model.eos_token_id
    sequence = Sequence(prompt_ids, penalties, max_new_tokens, eos_token_ids=[eos])
    times, session = StepTimes(), model.session()
    output: list[int] = []
    drafts: list[int] = []
    taken: list[int] | None = None
    num_accepted: list[int] = []
    with client.create_batch([sequence], vocab_size=model.vocab_size) as batch:
        with timed(times.model):
            logits = session.start(prompt_ids)
        while True:
            # A row of logits for the end of the text and one for each draft; one round trip, as in plain decoding.
            with timed(times.service):
                processed = batch.apply(logits, taken and [taken], drafts=[drafts])
            taken = _accept(drafts, processed.argmax(axis=1).tolist(), eos)
            num_accepted.append(len(taken) - 1)
            output += taken
            if output[-1] == eos or len(output) == max_new_tokens:
                break
            num_rejected = len(drafts) - num_accepted[-1]
            # The last token of a step is never a draft.
            room = min(num_drafts, max_new_tokens - len(output) - 1)
            with timed(times.model):
                drafts = drafter.draft([*prompt_ids, *output], room)
                logits = session.extend([taken[-1], *drafts], num_dropped=num_rejected)
    ended = output[-1] == eos
    return SpeculativeResult(Decoded(output[:-1] if ended else output, ended), times, num_accepted)


def check_same_text(speculative: Decoded, plain: Decoded) -> None:
    """Raises CheckError unless both decodes gave the same tokens."""
    if speculative != plain:
        ours, theirs = np.array(speculative.token_ids), np.array(plain.token_ids)
        length = min(len(ours), len(theirs))
        same = int(np.logical_and.accumulate(ours[:length] == theirs[:length]).sum())
        raise CheckError(f"with drafts the text must be that of plain decoding, got another one from token {same} on")


def _accept(drafts: AnySequence[int], best: AnySequence[int], eos: int) -> list[int]:
    # The drafts that are what the model says at their places, and what it says after them, up to the end of the text.
    taken: list[int] = []
    for token_id, draft in zip(best, [*drafts, None], strict=True):
        taken.append(token_id)
        if token_id != draft or token_id == eos:
            break
    return taken
