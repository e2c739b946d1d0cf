"""The case files that lie beside the repository, where there are any: the numbers of `test_cases`, as they came."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.penalty_states import append, penalise
from logitd.sampling import ParameterError, PenaltyOrchestrator, PenaltyParameters, RowStart

FOLDER = Path(__file__).parents[3] / "shared" / "cases"
STEP_CASES = (
    *("01-rep-penalty-sign", "02-once-vs-per-occurrence", "03-prompt-vs-output-tokens", "04-order-of-operations"),
    *("05-mixed-batch-padding", "12-minus-inf-stays-minus-inf"),
)
PROFILES = {"sglang": "SGLANG", "SGLANG_FUSED": "SGLANG_FUSED", "vllm": "VLLM", "hf": "HF"}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no case files in {FOLDER}")


def load(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Input and expectation of one file."""
    case = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return case["input"], case["expected"]


def to_parameters(given: dict[str, Any], eos_token_ids: list[int], *names: str) -> PenaltyParameters:
    """Those of the given values that are named, or all; EOS and stop ids as one set."""
    values = {name: float(value) for name, value in given.items() if name.endswith("_penalty") and value is not None}
    wanted = {name: value for name, value in values.items() if not names or name in names}
    stop_ids = (*eos_token_ids, *given.get("stop_token_ids", ()))
    return PenaltyParameters(**wanted, min_new_tokens=given.get("min_new_tokens", 0), stop_token_ids=stop_ids)


def to_tensor(logits: list[list[Any]]) -> torch.Tensor:
    return torch.tensor([[float(value) for value in row] for row in logits])


def assert_logits(state: PenaltyOrchestrator, logits: list[list[Any]], expected: list[list[Any]]) -> None:
    torch.testing.assert_close(penalise(state, to_tensor(logits)), to_tensor(expected), rtol=1e-5, atol=1e-6)


def open_rows(profile: str, given: dict[str, Any], outputs: list[list[int]]) -> PenaltyOrchestrator:
    # That engine knows no other penalty.
    names = ("repetition_penalty",) if profile == "HF" and "output_token_ids_first_step" in given else ()
    rows = [
        RowStart(to_parameters(parameters, given["eos_token_ids"], *names), prompt, output)
        for parameters, prompt, output in zip(given["params"], given["prompt_token_ids"], outputs, strict=True)
    ]
    return PenaltyOrchestrator.create(profile, given["vocab_size"], rows)


@pytest.mark.parametrize("name", STEP_CASES)
def test_a_step(name: str) -> None:
    given, expected = load(name)
    engines = {engine: part for engine, part in expected.get("by_engine", {}).items() if engine in PROFILES}
    for engine, part in (engines or {"sglang": expected}).items():
        state = open_rows(PROFILES[engine], given, given["output_token_ids"])
        assert_logits(state, given["logits"], part.get("logits_without_bias", part["logits"]))
        if "logits_first_step" in part:
            state = open_rows(PROFILES[engine], given, given["output_token_ids_first_step"])
            assert_logits(state, given["logits"], part["logits_first_step"])


def test_merge_and_filter() -> None:
    given, expected = load("07-merge-and-filter")
    results = iter(expected["apply_results"])
    states: dict[tuple[str, ...], PenaltyOrchestrator] = {}
    for action in given["ops"]:
        if action["op"] == "register":
            rows = [RowStart(to_parameters(given["params"][name], [])) for name in action["ids"]]
            states[tuple(action["ids"])] = PenaltyOrchestrator.create("SGLANG", given["vocab_size"], rows)
        elif action["op"] == "accumulate":
            tokens = action["tokens"]
            states = {names: append(state, [tokens.get(name, []) for name in names]) for names, state in states.items()}
        elif action["op"] == "apply":
            names = tuple(action["rows"])
            assert_logits(states[names], [given["logits_row"]] * len(names), next(results)["logits"])
        else:
            states = arrange(states, tuple(action.get("batch") or action["keep"]))
    assert next(results, None) is None


def arrange(
    states: dict[tuple[str, ...], PenaltyOrchestrator], names: tuple[str, ...]
) -> dict[tuple[str, ...], PenaltyOrchestrator]:
    """All batches as one, of these rows in this order."""
    merged = functools.reduce(PenaltyOrchestrator.merge, states.values())
    order = [name for batch in states for name in batch]
    return {names: merged.filter([order.index(name) for name in names])}


def test_min_new_tokens() -> None:
    given, expected = load("08-min-new-tokens")
    assert given["subcases"].keys() == expected.keys()
    for name, subcase in given["subcases"].items():
        parameters = to_parameters(subcase["params"], subcase["eos_token_ids"])
        lengths, results = subcase["n_output_tokens"], expected[name]["logits_per_length"]
        for length, result in zip(lengths, results, strict=True):
            row = RowStart(parameters, subcase["prompt_token_ids"], [0] * length)
            state = PenaltyOrchestrator.create("SGLANG", given["vocab_size"], [row])
            assert_logits(state, [given["logits_row"]], [result])


def test_committed_drafts() -> None:
    given, expected = load("09-spec-decode-positions")
    row = RowStart(to_parameters(given["params"], []), (), given["committed_output"])
    state = PenaltyOrchestrator.create("VLLM", given["vocab_size"], [row])
    drafts, accepted = given["draft_tokens"], given["accepted_drafts"]
    for position, (logits, result) in enumerate(zip(given["verify_logits"], expected["verify_rows"], strict=True)):
        assert_logits(state.accumulate(drafts[:position], [0, position]), [logits], [result])
    state = state.accumulate(drafts, [0, len(drafts)])
    state = state.accumulate([given["recovered_token"]], rollback=[len(drafts) - accepted])
    assert state.output_token_ids(0).tolist() == expected["output_after_commit"]
    assert_logits(state, given["next_step_logits"], expected["next_step_logits"])


def test_parameters() -> None:
    given, expected = load("13-parameter-validation")
    results = {0: "logits_when_unset", 5: "logits_when_0.5", 7: "logits_when_frequency_-2"}
    for index, (parameters, status) in enumerate(zip(given["register_with"], expected["status"], strict=True)):
        if "max_new_tokens" in parameters:
            continue
        row = RowStart(to_parameters(parameters, given["eos_token_ids"]), (), given["output_token_ids"][0])
        if status == "INVALID_ARGUMENT" or parameters.get("repetition_penalty") == 2.5:
            with pytest.raises(ParameterError):
                PenaltyOrchestrator.create("SGLANG", given["vocab_size"], [row])
        else:
            state = PenaltyOrchestrator.create("SGLANG", given["vocab_size"], [row])
            assert_logits(state, given["logits"], expected[results[index]])
