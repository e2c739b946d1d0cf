"""What the demo puts on the screen."""

from __future__ import annotations

import sys
import textwrap
from statistics import mean
from typing import TYPE_CHECKING

from logitd.client.demo.models import repeated_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitd.client.demo.decoding import BeamResult, Decoded, GreedyResult, StepTimes
    from logitd.client.demo.models import LanguageModel
    from logitd.client.demo.speculation import SpeculativeResult

__all__ = ["beams", "greedy", "say", "speculative", "times"]

_WIDTH = 100


def say(line: str = "") -> None:
    """One line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def greedy(title: str, labels: Sequence[str], result: GreedyResult, model: LanguageModel, prompt: str) -> None:
    """The texts of a batch, each under its label."""
    _heading(title, prompt)
    for label, output in zip(labels, result.outputs, strict=True):
        say(f"{label:<50}{_summary(output)}")
        say(_text(model.decode(output.token_ids), output.ended))
        say()
    say(f"  ✓ {result.num_unchanged_rows} rows of logits without penalties came back bit for bit as they were sent;")
    say(f"    {result.num_changed_logits} logits of the others came back changed.")


def beams(title: str, result: BeamResult, model: LanguageModel, prompt: str) -> None:
    """The hypotheses of a search, best first."""
    _heading(title, prompt)
    for rank, hypothesis in enumerate(result.hypotheses, 1):
        token_ids = hypothesis.token_ids.tolist()
        ended = hypothesis.finish_reason == "EOS"
        output = token_ids[:-1] if ended else token_ids
        parts = f"log-probability {hypothesis.log_prob_sum:.4f} over {len(token_ids)} tokens"
        say(f"{rank}. score {hypothesis.score:.4f}   {parts}")
        say(_text(model.decode(output), ended))
        say()
    say(f"  ✓ the model alone gives the same log-probabilities, to {result.greatest_difference:.0e}.")


def speculative(title: str, labels: Sequence[str], results: Sequence[SpeculativeResult], prompt: str) -> None:
    """How many steps each text took; its tokens have been checked to be those of plain decoding."""
    _heading(title, prompt)
    for label, result in zip(labels, results, strict=True):
        num_tokens = len(result.output.token_ids)
        steps = f"{num_tokens:3} tokens in {len(result.num_accepted):3} steps"
        say(f"  {label:<36} {steps}    {mean(result.num_accepted):.2f} drafts accepted a step")
    say()
    say("  ✓ every text is, token for token, the one that plain decoding gave above.")


def times(rows: Sequence[tuple[str, StepTimes]]) -> None:
    """The time of a step."""
    _heading("Time of a step (median; the service's with the way there and back)")
    for label, each in rows:
        say(f"  {label:<46} model {each.model_ms:8.2f} ms    service {each.service_ms:6.2f} ms")


def _heading(title: str, prompt: str = "") -> None:
    say(f"\n── {title} ".ljust(_WIDTH, "─"))
    if prompt:
        say(f"Prompt: {prompt}")
    say()


def _summary(output: Decoded) -> str:
    share = repeated_fraction(output.token_ids)
    return f"{len(output.token_ids):3} tokens, repeated 3-grams {share:4.0%}"


def _text(text: str, ended: bool) -> str:
    line = " ".join([*text.split(), "⏹" if ended else "…"])
    return textwrap.indent(textwrap.fill(line, _WIDTH - 4), "    ")
