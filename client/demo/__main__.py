"""`python -m logitd.client.demo`: a model decodes through a logitd server, and a person sees what changes.

Exit status: 0 when all went well and the checks held, 1 with the reason when not, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import logging
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

from logitd.client import Client, LogitdError, Penalties
from logitd.client.demo import llm, ngram, show
from logitd.client.demo.decoding import CheckError, decode_greedily, search_beams
from logitd.client.demo.server import running_server
from logitd.client.demo.speculation import LookupDrafter, ModelDrafter, check_same_text, decode_with_drafts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitd.client.demo.decoding import GreedyResult
    from logitd.client.demo.models import LanguageModel
    from logitd.client.demo.speculation import Drafter, SpeculativeResult

_MIN_NEW_TOKENS = 15
_BEAMS = 4
_BEAM_TOKENS = 16
_DRAFTS = 4

_ALONE = [
    ("no penalties", Penalties()),
    ("repetition_penalty 1.3", Penalties(repetition_penalty=1.3)),
    ("frequency_penalty 0.3", Penalties(frequency_penalty=0.3)),
    ("presence_penalty 0.5", Penalties(presence_penalty=0.5)),
]
_LENGTH = [
    ("no penalties", Penalties()),
    (f"min_new_tokens {_MIN_NEW_TOKENS}", Penalties(min_new_tokens=_MIN_NEW_TOKENS)),
    (f"min_new_tokens {_MIN_NEW_TOKENS} and repetition_penalty 1.3", Penalties(1.3, min_new_tokens=_MIN_NEW_TOKENS)),
]


class _Choice(NamedTuple):
    """A model with a drafter, and the prompts that show something with it."""

    name: str
    drafter_name: str
    load: Callable[[], tuple[LanguageModel, Drafter]]
    prompt: str
    short_prompt: str
    max_new_tokens: int


def _load_ngram() -> tuple[LanguageModel, Drafter]:
    model = ngram.load_ngram()
    return model, ModelDrafter(model.shortened(2))


_EMBEDDED = _Choice(
    "an n-gram model of “Alice's Adventures in Wonderland”, built now",
    "from a model of word pairs",
    _load_ngram,
    ngram.DEFAULT_PROMPT,
    ngram.SHORT_PROMPT,
    max_new_tokens=60,
)
_LLM = _Choice(
    "SmolLM2-135M-Instruct",
    "from the text so far",
    lambda: (llm.load_smollm2(), LookupDrafter()),
    llm.DEFAULT_PROMPT,
    llm.SHORT_PROMPT,
    max_new_tokens=40,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m logitd.client.demo", description=_description())
    parser.add_argument("--llm", action="store_true", help="a real model, SmolLM2-135M, fetched at the first use")
    choice = _LLM if parser.parse_args(argv).llm else _EMBEDDED
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character shows another one.
        sys.stdout.reconfigure(errors="replace")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        _run(choice)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (CheckError, LogitdError, ImportError, OSError, RuntimeError) as error:
        notes = getattr(error, "__notes__", [])
        return _fail("\n".join([f"{type(error).__name__}: {error}", *notes]), 1)
    return 0


def _run(choice: _Choice) -> None:
    with running_server() as server, Client(server.target) as client:
        show.say(f"Server   process {server.pid}, {server.target}")
        model, drafter = choice.load()
        capabilities = server.wait_until_ready(client)
        show.say(f"         logitd {capabilities.version}, working on {', '.join(capabilities.devices)}")
        show.say(f"Model    {choice.name}: {model.vocab_size} tokens")
        alone = decode_greedily(client, model, choice.prompt, [each for _, each in _ALONE], choice.max_new_tokens)
        title = "Greedy decoding: one batch, each sequence with penalties of its own"
        show.greedy(title, [label for label, _ in _ALONE], alone, model, choice.prompt)
        length = decode_greedily(
            client, model, choice.short_prompt, [each for _, each in _LENGTH], choice.max_new_tokens
        )
        title = "Text that would end early"
        show.greedy(title, [label for label, _ in _LENGTH], length, model, choice.short_prompt)
        beams = search_beams(client, model, choice.prompt, _BEAMS, _BEAM_TOKENS)
        show.beams(f"Beam search: {_BEAMS} beams by the rule of Transformers (HF)", beams, model, choice.prompt)
        drafted = _decode_with_drafts(client, model, drafter, choice, alone)
        title = f"Speculative decoding: up to {_DRAFTS} drafts a step, {choice.drafter_name}"
        show.speculative(title, [label for label, _ in _ALONE], drafted, choice.prompt)
        steps = [
            (f"penalties, {len(_ALONE)} rows", alone.times),
            (f"beam search, {_BEAMS} rows", beams.times),
            (f"with up to {_DRAFTS} drafts, 1 row", drafted[0].times),
        ]
        show.times(steps)
    show.say("\nThe server has ended; nothing is left running.")


def _decode_with_drafts(
    client: Client, model: LanguageModel, drafter: Drafter, choice: _Choice, plain: GreedyResult
) -> list[SpeculativeResult]:
    """The texts of `plain` once more, which they must be."""
    results = []
    for (_, penalties), output in zip(_ALONE, plain.outputs, strict=True):
        result = decode_with_drafts(client, model, drafter, choice.prompt, penalties, choice.max_new_tokens, _DRAFTS)
        check_same_text(result.output, output)
        results.append(result)
    return results


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _fail(reason: str, status: int) -> int:
    sys.stderr.write(f"\ndemo: {reason}\n")
    return status


def _description() -> str:
    return (
        "Decodes with a small model through a logitd server of its own and shows what penalties, beams and drafts do."
    )


if __name__ == "__main__":
    sys.exit(main())
