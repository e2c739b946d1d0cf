"""Wrong values for every field of CreateBatch; limits are those of the tests' server."""

from __future__ import annotations

from math import inf, nan

from helpers.bad_input import Bad
from helpers.wire import doubles, ints
from logitd.v1 import types_pb2

_TEN_MEGABYTES = 10 << 20
_PROFILES = {"SGLANG": 1, "SGLANG_FUSED": 2, "VLLM": 3, "HF": 4}
_FREQUENCY, _PRESENCE = "sequences[0].penalties.frequency_penalty", "sequences[0].penalties.presence_penalty"
_REPETITION = "sequences[0].penalties.repetition_penalty"
_BEAM, _BEAMS = "sequences[0].beam", "sequences[0].beams"
_LIVE, _POOL = "sequences[0].beams.live_beams[0]", "sequences[0].beams.pool[0]"
_CHECKPOINT = f"{_BEAMS}.checkpoint"
_ID_ARRAYS = (("penalty", "prompt_token_ids"), ("penalty", "output_token_ids"), ("beam", "prompt_token_ids"))
_NAMES = "1 to 128 printable ASCII characters"

BATCH = [
    Bad("penalty", "batch_id", "", f"{_NAMES} ... got ''"),
    Bad("penalty", "batch_id", "x" * 129, f"{_NAMES} ... got 'xxx ... (131 characters)"),
    Bad("penalty", "batch_id", "x" * _TEN_MEGABYTES, f"{_NAMES} ... (10485762 characters)"),
    Bad("penalty", "batch_id", "\U0001f600" * 2_000_000, f"{_NAMES} ... (2000002 characters)"),
    Bad("penalty", "batch_id", "Übung", f"{_NAMES} ... got 'Übung'"),
    Bad("penalty", "batch_id", "a\nb", f"{_NAMES} ... got 'a\\nb'"),
    Bad("penalty", "create_key", None, "16 bytes ... got '0 bytes'"),
    Bad("penalty", "create_key", bytes(15), "16 bytes ... got '15 bytes'"),
    Bad("penalty", "create_key", bytes(17), "16 bytes ... got '17 bytes'"),
    Bad("penalty", "vocab_size", None, "in [1, 65536] ... got 0"),
    Bad("penalty", "vocab_size", -1, "in [1, 65536] ... got -1"),
    Bad("penalty", "vocab_size", 65_537, "in [1, 65536] ... got 65537"),
    Bad("penalty", "vocab_size", 2**31 - 1, "in [1, 65536] ... got 2147483647"),
    Bad("penalty", "profile", 99, "one of SGLANG, ... got 99"),
    Bad("penalty", "profile", -1, "one of SGLANG, ... got -1"),
    Bad("penalty", "kind", 99, "PENALTY or BEAM ... got 99"),
    Bad(
        "penalty",
        "kind",
        types_pb2.BATCH_KIND_BEAM,
        "must be set in a beam batch",
        at="sequences[0].max_new_tokens",
        also={"sequences[0].max_new_tokens": None},
    ),
    Bad("penalty", "kind", types_pb2.BATCH_KIND_BEAM, "must be set in a beam batch, got 'nothing'", at=_BEAM),
    Bad("beam", "kind", types_pb2.BATCH_KIND_PENALTY, "not be set in a penalty batch", at="beam_rule"),
    Bad(
        "beam",
        "kind",
        types_pb2.BATCH_KIND_PENALTY,
        "not be set in a penalty batch",
        at=_BEAM,
        also={"beam_rule": None},
    ),
    Bad("beam", "beam_rule", 99, "one of HF, VLLM, ... got 99"),
    Bad("penalty", "beam_rule", types_pb2.BEAM_RULE_HF, "not be set in a penalty batch ... got 1"),
    Bad("penalty", "allow_penalty_extension", True, "not be set in a penalty batch ... got True"),
    Bad("penalty", "sequences", None, "at least one ... got 0"),
]

SEQUENCES = [
    Bad("penalty", "sequences[0].sequence_id", "", "1 to 128 characters ... got ''"),
    Bad("penalty", "sequences[0].sequence_id", "x" * 129, "1 to 128 characters ... (131 characters)"),
    Bad("penalty", "sequences[0].sequence_id", "\U0001f600" * 129, "1 to 128 characters ... (131 characters)"),
    Bad("penalty", "sequences[1].sequence_id", "a", "unique within the batch ... got 'a'"),
    *(
        Bad(base, f"sequences[0].{name}", wrong, says, at=f"sequences[0].{name}{index}")
        for base, name in _ID_ARRAYS
        for wrong, says, index in (
            (ints(0, -1), "in [0, 6) ... got -1", "[1]"),
            (ints(6, 0), "in [0, 6) ... got 6", "[0]"),
            (ints(0, 0, 2**31 - 1), "in [0, 6) ... got 2147483647", "[2]"),
            (bytes(5), "multiple of 4 bytes ... got '5 bytes'", ""),
        )
    ),
    Bad("penalty", "sequences[0].prompt_token_ids", bytes(4 * 65), "at most 64 token ids ... got 65"),
    Bad("penalty", "sequences[0].output_token_ids", bytes(4 * 11), "at most 10 token ids ... got 11"),
    Bad("beam", "sequences[0].output_token_ids", ints(1), "empty in a beam batch ... got"),
    Bad("penalty", "sequences[0].max_new_tokens", 0, "in [1, 1000] ... got 0"),
    Bad("penalty", "sequences[0].max_new_tokens", -1, "in [1, 1000] ... got -1"),
    Bad("penalty", "sequences[0].max_new_tokens", 1001, "in [1, 1000] ... got 1001"),
    Bad("penalty", "sequences[0].max_new_tokens", 2**31 - 1, "in [1, 1000] ... got 2147483647"),
    Bad("penalty", "sequences[0].max_new_tokens", 2, "at most 2 ... got 3", at="sequences[0].output_token_ids",
        also={"sequences[0].penalties.min_new_tokens": 0}),
    Bad("beam", "sequences[0].max_new_tokens", None, "must be set in a beam batch ... got 'nothing'"),
    *(
        Bad(base, f"sequences[0].{name}", [0, wrong], f"in [0, 5] ... got {wrong}", at=f"sequences[0].{name}[1]")
        for base in ("penalty", "beam")
        for name in ("eos_token_ids", "stop_token_ids")
        for wrong in (-1, 6, 2**31 - 1)
    ),
    Bad("penalty", "sequences[0].eos_token_ids", [5] * 8, "at most 8 with eos_token_ids ... got 9",
        at="sequences[0].stop_token_ids"),
    Bad("penalty", "sequences[0].stop_token_ids", [4] * 8, "at most 8 with eos_token_ids ... got 9"),
    Bad("penalty", _BEAM, types_pb2.BeamParameters(width=2), "not be set in a penalty batch", also={"kind": 1}),
    Bad("penalty", _BEAMS, types_pb2.BeamSearchState(checkpoint=b"x"), "not be set in a penalty batch ... got"),
    Bad("penalty", "sequences[1].beam", types_pb2.BeamParameters(width=2), "not be set in a penalty batch"),
    Bad("beam", "sequences[1].beam", None, "must be set in a beam batch ... got 'nothing'"),
]  # fmt: skip

PENALTIES = [
    *(
        Bad("penalty", _REPETITION, wrong, f"finite and > 0 ... got {wrong}", also={"profile": profile})
        for profile in _PROFILES.values()
        for wrong in (0.0, -0.0, -1.0, nan, inf, -inf, 1e39, 1e-46)
    ),
    *(
        Bad("penalty", _REPETITION, wrong, f"at most 2 in profile {name} ... got {wrong}", also={"profile": number})
        for name, number in _PROFILES.items()
        if name.startswith("SGLANG")
        for wrong in (2.5, 2.0000001)
    ),
    *(
        Bad("penalty", path, wrong, f"finite ... got {wrong}", also={"profile": profile})
        for path in (_FREQUENCY, _PRESENCE)
        for profile in _PROFILES.values()
        for wrong in (nan, inf, -inf, 1e39, -1e39)
    ),
    *(
        Bad("penalty", path, wrong, f"[-2, 2] in profile {name} ... got {wrong}", also={"profile": _PROFILES[name]})
        for path in (_FREQUENCY, _PRESENCE)
        for name in ("SGLANG", "SGLANG_FUSED", "VLLM")
        for wrong in (2.5, -2.5)
    ),
    Bad("penalty", "sequences[0].penalties.min_new_tokens", -1, "[0, 2147483647] ... got -1"),
    Bad("penalty", "sequences[0].penalties.min_new_tokens", 11, "at most max_new_tokens, 10, got 11"),
    Bad("beam", "sequences[0].penalties.min_new_tokens", 7, "at most max_new_tokens, 6, got 7"),
]  # fmt: skip

BEAMS = [
    Bad("beam", f"{_BEAM}.width", None, "1 or more ... got 0"),
    Bad("beam", f"{_BEAM}.width", -1, "1 or more ... got -1"),
    Bad("beam", f"{_BEAM}.width", 1, "[2, ... got 1"),
    Bad("beam", f"{_BEAM}.width", 65, "max_rows_per_batch is 64, got 68", at="-",
        code="RESOURCE_EXHAUSTED", reason="TOO_MANY_ROWS"),
    Bad("beam", f"{_BEAM}.width", 2**31 - 1, "max_rows_per_batch is 64, got 2147483650", at="-",
        code="RESOURCE_EXHAUSTED", reason="TOO_MANY_ROWS"),
    Bad("beam", f"{_BEAM}.width", 2, "vocab_size under HF, got 2",
        also={"vocab_size": 1, "sequences[0].eos_token_ids": None, "sequences[0].prompt_token_ids": None,
              "sequences[1].eos_token_ids": None}),
    Bad("vllm", f"{_BEAM}.width", 4, "vocab_size / 2 (3) under VLLM, got 4"),
    *(Bad("beam", f"{_BEAM}.length_penalty", wrong, f"finite ... got {wrong}") for wrong in (nan, inf, -inf)),
    *(Bad(base, f"{_BEAM}.length_penalty", wrong, f"finite and above 0 ... got {wrong}")
        for base in ("beam", "vllm") for wrong in (1e300, -1e300)),
    Bad("beam", f"{_BEAM}.early_stopping", 99, "FALSE, TRUE or NEVER ... got 99"),
    Bad("vllm", f"{_BEAM}.early_stopping", types_pb2.EARLY_STOPPING_TRUE, "FALSE under VLLM ... got 'TRUE'"),
    Bad("vllm", f"{_BEAM}.early_stopping", types_pb2.EARLY_STOPPING_NEVER, "FALSE under VLLM ... got 'NEVER'"),
    *(Bad("beam", f"{_BEAM}.num_return_sequences", wrong, f"[1, 2] ... got {wrong}") for wrong in (0, -1, 3)),
    Bad("rebuild", f"{_BEAM}.return_token_log_probs", True, "must be given", at=f"{_LIVE}.token_log_probs",
        also={f"{_LIVE}.token_log_probs": None}),
    Bad("vllm", "sequences[1].penalties", types_pb2.PenaltyParameters(presence_penalty=1), "extension flag under VLLM"),
    Bad("vllm", "sequences[1].penalties", types_pb2.PenaltyParameters(min_new_tokens=1), "extension flag under VLLM"),
    Bad("vllm", "beam_rule", types_pb2.BEAM_RULE_VLLM_PROMPT_LENGTH, "at least 1 under VLLM_PROMPT_LENGTH, got 0",
        at="sequences[1].prompt_token_ids"),
]  # fmt: skip

REBUILDS = [
    Bad("rebuild", f"{_LIVE}.token_ids", ints(0, 6), "in [0, 6) ... got 6", at=f"{_LIVE}.token_ids[1]"),
    Bad("rebuild", f"{_LIVE}.token_ids", ints(-1, 0), "in [0, 6) ... got -1", at=f"{_LIVE}.token_ids[0]"),
    Bad("plain rebuild", f"{_LIVE}.token_ids", ints(0, 6), "in [0, 6) ... got 6", at=f"{_LIVE}.token_ids[1]"),
    Bad("rebuild", f"{_LIVE}.token_ids", bytes(7), "multiple of 4 bytes ... got '7 bytes'"),
    Bad("rebuild", f"{_LIVE}.token_ids", b"", "1 to max_new_tokens - 1 (5) tokens ... got '0 tokens'"),
    Bad("rebuild", f"{_LIVE}.token_ids", bytes(4 * 6), "1 to max_new_tokens - 1 (5) tokens ... got '6 tokens'"),
    Bad("rebuild", f"{_LIVE}.token_ids", ints(1), "tokens ... got '2 tokens'",
        at=f"{_BEAMS}.live_beams[1].token_ids",
        also={f"{_LIVE}.parent_chain": ints(0), f"{_LIVE}.token_log_probs": doubles(0)}),
    *(Bad("rebuild", f"{_LIVE}.{name}", wrong, f"NaN or +inf ... got {wrong}")
        for name in ("score", "log_prob_sum") for wrong in (nan, inf)),
    Bad("rebuild", f"{_LIVE}.token_log_probs", bytes(15), "multiple of 8 bytes ... got '15 bytes'"),
    Bad("rebuild", f"{_LIVE}.token_log_probs", doubles(-1), "one value a token (2) ... got '1 values'"),
    Bad("rebuild", f"{_LIVE}.parent_chain", bytes(3), "multiple of 4 bytes ... got '3 bytes'"),
    Bad("rebuild", f"{_LIVE}.parent_chain", ints(0), "one value a token (2) ... got '1 values'"),
    Bad("rebuild", f"{_BEAMS}.live_beams", None, "without live beams", at=f"{_BEAMS}.pool"),
    Bad("rebuild", f"{_BEAMS}.live_beams", None, "without live beams", at=_CHECKPOINT,
        also={f"{_BEAMS}.pool": None}),
    Bad("rebuild", f"{_BEAM}.width", 3, "width (3) beams under HF, got 2", at=f"{_BEAMS}.live_beams"),
    Bad("rebuild", f"{_POOL}.token_ids", ints(6), "in [0, 6) ... got 6", at=f"{_POOL}.token_ids[0]"),
    Bad("rebuild", f"{_POOL}.token_ids", ints(-1), "in [0, 6) ... got -1", at=f"{_POOL}.token_ids[0]"),
    Bad("rebuild", f"{_POOL}.token_ids", bytes(2), "multiple of 4 bytes ... got '2 bytes'"),
    Bad("rebuild", f"{_POOL}.token_ids", b"", "1 to 2 tokens ... got '0 tokens'"),
    Bad("rebuild", f"{_POOL}.token_ids", bytes(12), "1 to 2 tokens ... got '3 tokens'"),
    Bad("rebuild", f"{_POOL}.token_ids", ints(0, 4), "hypothesis that the checkpoint names", at=f"{_BEAMS}.pool"),
    *(Bad("rebuild", f"{_POOL}.{name}", wrong, f"NaN or +inf ... got {wrong}")
        for name in ("score", "running_sum", "log_prob_sum") for wrong in (nan, inf)),
    Bad("rebuild", f"{_POOL}.score", -0.5, "hypothesis that the checkpoint names", at=f"{_BEAMS}.pool"),
    Bad("rebuild", f"{_POOL}.token_log_probs", bytes(4), "multiple of 8 bytes ... got '4 bytes'"),
    Bad("rebuild", f"{_POOL}.token_log_probs", doubles(0, 0, 0), "one value a token (2) ... got '3 values'"),
    Bad("rebuild", f"{_POOL}.parent_chain", bytes(1), "multiple of 4 bytes ... got '1 bytes'"),
    Bad("rebuild", f"{_POOL}.parent_chain", ints(0, 0, 0), "one value a token (2) ... got '3 values'"),
    *(Bad("rebuild", f"{_POOL}.finish_reason", wrong, f"EOS, LENGTH or REQUESTED ... got {wrong}")
        for wrong in (0, 4, 5, 99, -1)),
    Bad("rebuild", f"{_BEAMS}.pool", None, "hypothesis that the checkpoint names"),
    Bad("rebuild", _CHECKPOINT, b"x", "at least 6 bytes ... got '1 bytes'"),
    Bad("rebuild", _CHECKPOINT, lambda data: b"\x63" + data[1:], "version 1 ... got 'version 99'"),
    Bad("rebuild", _CHECKPOINT, lambda data: data[:1] + b"\x63" + data[2:], "rule HF ... got 'tag 99'"),
    Bad("rebuild", _CHECKPOINT, lambda data: data[:-1], "bytes ... got '39 bytes'"),
    Bad("rebuild", _CHECKPOINT, lambda data: data[:2] + b"\xff" * 4 + data[6:], "bytes ... got '40 bytes'"),
    Bad("rebuild", _CHECKPOINT, lambda data: data[:2] + b"\1\0\0\0" + data[6:23], "by HF ... got '1 slots'"),
    Bad("rebuild", "beam_rule", types_pb2.BEAM_RULE_VLLM, "rule VLLM", at=_CHECKPOINT,
        also={"allow_penalty_extension": True}),
]  # fmt: skip

CREATIONS = [*BATCH, *SEQUENCES, *PENALTIES, *BEAMS, *REBUILDS]
