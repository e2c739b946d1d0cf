"""Wrong values for every field of Accumulate, Apply and BeamStep, and of the RPCs that look batches up."""

from __future__ import annotations

from math import inf, nan

from helpers.bad_drafts import DRAFTS
from helpers.bad_input import Bad
from helpers.bad_membership import FILTERS, MERGES
from helpers.right_requests import BEAM_LOGITS
from helpers.wire import ints, tensor
from logitd.v1.types_pb2 import APPLY_FORM_EDITS, APPLY_FORM_IN_PLACE, SharedMemoryRef, Tensor

_TEN_MEGABYTES = "x" * (10 << 20)
_NAMES = "1 to 128 printable ASCII characters"
_MUTATIONS = ("Accumulate", "Apply", "BeamStep", "FilterBatch", "MergeBatches")
_STEPS = (*_MUTATIONS, "Apply without tokens")
_TENSORS = {"Apply": 2, "Apply without tokens": 2, "BeamStep": 5}
_MOST = 2**31 - 1
_GONE = {"at": "-", "code": "NOT_FOUND"}
_REFUSED = {"at": "-", "code": "FAILED_PRECONDITION"}


def _beam_logits(row: int, column: int, value: float) -> Tensor:
    logits = BEAM_LOGITS.repeat(5, 1)
    logits[row, column] = value
    return tensor(logits)


TARGETS = [
    case
    for base in _STEPS
    for case in (
        Bad(base, "target", None, f"{_NAMES} ... got ''", at="target.batch_id"),
        Bad(base, "target.batch_id", "", f"{_NAMES} ... got ''"),
        Bad(base, "target.batch_id", "é", f"{_NAMES} ... got 'é'"),
        Bad(base, "target.batch_id", _TEN_MEGABYTES, f"{_NAMES} ... (10485762 characters)"),
        Bad(base, "target.batch_id", "another", "no live batch", reason="BATCH_NOT_FOUND", **_GONE),
        Bad(base, "target.uid", None, "16 bytes ... got '0 bytes'"),
        Bad(base, "target.uid", bytes(15), "16 bytes ... got '15 bytes'"),
        Bad(base, "target.uid", bytes(10_000_000), "16 bytes ... got '10000000 bytes'"),
        Bad(base, "target.uid", bytes(16), "live with another uid", reason="UID_MISMATCH", **_GONE),
        Bad(base, "target.expected_revision", None, "must be set ... got 'nothing'"),
        Bad(base, "target.expected_revision", -1, "0 or more ... got -1"),
        Bad(base, "target.expected_revision", -(2**63), "0 or more ... got -9223372036854775808"),
        Bad(base, "target.expected_revision", 2, "revision 1, got 2", reason="REVISION_MISMATCH", **_REFUSED),
        Bad(base, "target.expected_revision", 0, "revision 1, got 0", reason="REVISION_MISMATCH", **_REFUSED),
        Bad(base, "target.expected_revision", 2**63 - 1, "revision 1, got 9223372036854775807",
            reason="REVISION_MISMATCH", **_REFUSED),
    )
] + [
    case
    for base in _MUTATIONS
    for case in (
        Bad(base, "target.request_id", None, "16 bytes ... got '0 bytes'"),
        Bad(base, "target.request_id", bytes(17), "16 bytes ... got '17 bytes'"),
    )
]  # fmt: skip

KINDS = [
    Bad("Accumulate on beams", "target.request_id", bytes(16), "Accumulate must be called on a penalty batch",
        reason="WRONG_BATCH_KIND", **_REFUSED),
    Bad("Apply on beams", "target.request_id", bytes(16), "Apply must be called on a penalty batch",
        reason="WRONG_BATCH_KIND", **_REFUSED),
    Bad("BeamStep on penalties", "target.request_id", bytes(16), "BeamStep must be called on a beam batch",
        reason="WRONG_BATCH_KIND", **_REFUSED),
]  # fmt: skip

TOKENS = [
    case
    for base in ("Accumulate", "Apply")
    for case in (
        Bad(base, "tokens.token_ids", ints(0, 1, -1), "in [0, 6) ... got -1", at="tokens.token_ids[2]"),
        Bad(base, "tokens.token_ids", ints(6, 1, 2), "in [0, 6) ... got 6", at="tokens.token_ids[0]"),
        Bad(base, "tokens.token_ids", ints(_MOST, 1, 2), f"in [0, 6) ... got {_MOST}", at="tokens.token_ids[0]"),
        Bad(base, "tokens.token_ids", ints(-(2**31), 1, 2), "in [0, 6) ... got -2147483648", at="tokens.token_ids[0]"),
        Bad(base, "tokens.token_ids", bytes(11), "multiple of 4 bytes ... got '11 bytes'"),
        Bad(base, "tokens.token_ids", b"", "number of tokens, 0", at="tokens.row_splits"),
        Bad(base, "tokens.token_ids", ints(1), "one a row, 2 ... got 1", also={"tokens.row_splits": None}),
        Bad(base, "tokens.token_ids", ints(1) * 9, "within its max_new_tokens, 10 ... got '12 output tokens'",
            also={"tokens.row_splits": ints(0, 9, 9)}),
        Bad(base, "tokens.token_ids", ints(1) * 101, "within its max_new_tokens, 100 ... got '102 output tokens'",
            also={"tokens.row_splits": ints(0, 0, 101)}),
        Bad(base, "tokens.token_ids", ints(1) * 2_000_000, "max_new_tokens, 110 in all, got '2000000 token ids'",
            also={"tokens.row_splits": ints(0, 2_000_000, 2_000_000)}),
        Bad(base, "tokens.row_splits", ints(0, 3), "shape (3,) ... got (2,)"),
        Bad(base, "tokens.row_splits", ints(0, 1, 2, 3), "shape (3,) ... got (4,)"),
        Bad(base, "tokens.row_splits", ints(*range(100_000)), "shape (3,) ... got (100000,)"),
        Bad(base, "tokens.row_splits", ints(0, 4, 3), "never fall ... got [0, 4, 3]"),
        Bad(base, "tokens.row_splits", ints(1, 2, 3), "start with 0 ... got [1, 2, 3]"),
        Bad(base, "tokens.row_splits", ints(-1, 2, 3), "start with 0 ... got [-1, 2, 3]"),
        Bad(base, "tokens.row_splits", ints(0, 2, 2), "number of tokens, 3 ... got [0, 2, 2]"),
        Bad(base, "tokens.row_splits", ints(0, 2, 4), "number of tokens, 3 ... got [0, 2, 4]"),
        Bad(base, "tokens.row_splits", ints(0, -(2**31), 3), "never fall ... got [0, -2147483648, 3]"),
        Bad(base, "tokens.row_splits", bytes(6), "multiple of 4 bytes ... got '6 bytes'"),
        Bad(base, "tokens.rollback_counts", ints(0), "shape (2,), one count a row, got (1,)"),
        Bad(base, "tokens.rollback_counts", ints(-1, 0), "[0, 4] ... got -1", at="tokens.rollback_counts[0]"),
        Bad(base, "tokens.rollback_counts", ints(0, 2), "[0, 1] ... got 2", at="tokens.rollback_counts[1]"),
        Bad(base, "tokens.rollback_counts", ints(_MOST, 0), f"got {_MOST}", at="tokens.rollback_counts[0]"),
        Bad(base, "tokens.rollback_counts", bytes(3), "multiple of 4 bytes ... got '3 bytes'"),
    )
] + [
    Bad("Accumulate", "tokens", None, "must be set ... got 'nothing'"),
]  # fmt: skip

LOGITS = [
    case
    for base, rows in _TENSORS.items()
    for case in (
        Bad(base, "first_row", -1, f"[0, {rows}) ... got -1"),
        Bad(base, "first_row", rows, f"[0, {rows}) ... got {rows}"),
        Bad(base, "first_row", _MOST, f"[0, {rows}) ... got {_MOST}"),
        Bad(base, "first_row", 1, f"at most {rows - 1} ... got {rows}", at="logits.shape[0]"),
        Bad(base, "logits.data_type", None, "FP32, FP16 or BF16 ... got 0"),
        Bad(base, "logits.data_type", 99, "FP32, FP16 or BF16 ... got 99"),
        Bad(base, "logits.data_type", 2, f"{rows} x 6 x 2, got '{rows * 24} bytes'", at="logits.data"),
        Bad(base, "logits.shape", None, "[rows, columns] ... got []"),
        Bad(base, "logits.shape", [rows * 6], f"[rows, columns] ... got [{rows * 6}]"),
        Bad(base, "logits.shape", [1], "[rows, columns] ... got [1]"),
        Bad(base, "logits.shape", [1, rows, 6], f"[rows, columns] ... got [1, {rows}, 6]"),
        Bad(base, "logits.shape", [1] * 1_000_000, "[rows, columns] ... got '1000000 dimensions'"),
        Bad(base, "logits.shape", [0, 6], "[1, 2147483647] ... got 0", at="logits.shape[0]"),
        Bad(base, "logits.shape", [-1, 6], "[1, 2147483647] ... got -1", at="logits.shape[0]"),
        Bad(base, "logits.shape", [-1, -6], "[1, 2147483647] ... got -1", at="logits.shape[0]"),
        Bad(base, "logits.shape", [rows, -6], "[6, 65536] ... got -6", at="logits.shape[1]"),
        Bad(base, "logits.shape", [rows, 0], "[6, 65536] ... got 0", at="logits.shape[1]"),
        Bad(base, "logits.shape", [rows, 5], "[6, 65536] ... got 5", at="logits.shape[1]"),
        Bad(base, "logits.shape", [rows, 65_537], "[6, 65536] ... got 65537", at="logits.shape[1]"),
        Bad(base, "logits.shape", [rows, 7], f"{rows} x 7 x 4, got '{rows * 24} bytes'", at="logits.data"),
        Bad(base, "logits.shape", [rows + 1, 6], f"at most {rows} ... got {rows + 1}", at="logits.shape[0]"),
        Bad(base, "logits.shape", [2**40, 2**40], f"at most {rows} ... got {2**40}", at="logits.shape[0]"),
        Bad(base, "logits.shape", [rows, 2**62], f"[6, 65536] ... got {2**62}", at="logits.shape[1]"),
        Bad(base, "logits.shape", [2**63 - 1, 2**63 - 1], f"got {2**63 - 1}", at="logits.shape[0]"),
        Bad(base, "logits.shape", [-(2**63), -(2**63)], f"got {-(2**63)}", at="logits.shape[0]"),
        Bad(base, "logits.data", None, "must be set ... got 'nothing'"),
        Bad(base, "logits.data", b"", f"{rows * 24} bytes ... got '0 bytes'"),
        Bad(base, "logits.data", lambda data: data[:-1], f"{rows * 24} bytes ... got '{rows * 24 - 1} bytes'"),
        Bad(base, "logits.data", lambda data: data + b"x", f"{rows * 24} bytes ... got '{rows * 24 + 1} bytes'"),
        Bad(base, "logits.shared_memory", SharedMemoryRef(), "no region", reason="REGION_NOT_FOUND", **_GONE),
    )
] + [
    case
    for base, num_bytes in (("Apply in a region", 48), ("BeamStep in a region", 120))
    for case in (
        Bad(base, "logits.shared_memory.region_id", "", "no region", reason="REGION_NOT_FOUND", **_GONE),
        Bad(base, "logits.shared_memory.region_id", "x" * 10_000_000, "no region", reason="REGION_NOT_FOUND", **_GONE),
        Bad(base, "logits.shared_memory.offset", -4, f"room for {num_bytes} bytes ... 4096, got -4"),
        Bad(base, "logits.shared_memory.offset", 2, "multiple of the item size, 4, got 2"),
        Bad(base, "logits.shared_memory.offset", 4096, f"room for {num_bytes} bytes ... 4096, got 4096"),
        Bad(base, "logits.shared_memory.offset", 4000, "room for ... got 4000", also={"logits.shape": [1, 1000]}),
        Bad(base, "logits.shared_memory.offset", 2**63 - 4, "room for ... got 9223372036854775804"),
        Bad(base, "logits.shared_memory.offset", -(2**63), "room for ... got -9223372036854775808"),
        Bad(base, "logits.shape", [2**40, 2**40], f"got {2**40}", at="logits.shape[0]"),
    )
]  # fmt: skip

FORMS = [
    case
    for base in ("Apply", "Apply without tokens")
    for case in (
        Bad(base, "logits", None, "must be set ... got 'nothing'"),
        Bad(base, "form", 99, "DENSE, SPARSE, IN_PLACE or EDITS ... got 99"),
        Bad(base, "form", -1, "DENSE, SPARSE, IN_PLACE or EDITS ... got -1"),
        Bad(base, "form", APPLY_FORM_IN_PLACE, "must be set in form IN_PLACE", at="logits.shared_memory"),
        Bad(base, "form", APPLY_FORM_EDITS, "not be set in form EDITS ... got 'a value'", at="logits"),
        Bad(base, "row_count", 1, "not be set but in form EDITS ... got 1"),
        Bad(base, "edits_since_revision", 0, "not be set but in form EDITS ... got 0"),
        Bad(base, "edits_since_revision", -1, "not be set but in form EDITS ... got -1"),
    )
] + [
    Bad("Apply of edits", "row_count", 0, "[1, 2] ... got 0"),
    Bad("Apply of edits", "row_count", -1, "[1, 2] ... got -1"),
    Bad("Apply of edits", "row_count", 3, "[1, 2] ... got 3"),
    Bad("Apply of edits", "row_count", 2, "[1, 1] ... got 2", also={"first_row": 1}),
    Bad("Apply of edits", "first_row", -1, "[0, 2) ... got -1"),
    Bad("Apply of edits", "first_row", 2, "[0, 2) ... got 2"),
    Bad("Apply of edits", "first_row", _MOST, f"[0, 2) ... got {_MOST}", also={"row_count": _MOST}),
]  # fmt: skip

BEAM_STEPS = [
    Bad("BeamStep", "logits", None, "cover all 5 live rows once ... got '0 rows'", at="logits.shape[0]"),
    Bad("BeamStep", "logits", tensor(BEAM_LOGITS.repeat(4, 1)), "cover all 5 live rows once ... got '4 rows'",
        at="logits.shape[0]"),
    *(
        Bad("BeamStep", "logits", _beam_logits(row, column, wrong), f"NaN or +inf ... got {wrong}",
            at=f"logits[{row}, {column}]", reason="INVALID_LOGITS")
        for row, column in ((0, 0), (1, 5), (4, 2))
        for wrong in (nan, inf)
    ),
    Bad("BeamStep", "finish_sequence_ids", ["c"], "name a search of the batch, got 'c'", at="finish_sequence_ids[0]"),
    Bad("BeamStep", "finish_sequence_ids", ["a", ""], "name a search of the batch, got ''",
        at="finish_sequence_ids[1]"),
    Bad("BeamStep", "finish_sequence_ids", ["a", "a"], "once ... got 'a'", at="finish_sequence_ids[1]"),
    Bad("BeamStep", "finish_sequence_ids", ["a", "a"], "once ... got 'a'", at="finish_sequence_ids[1]",
        also={"logits": None}),
    Bad("BeamStep", "finish_sequence_ids", ["x" * 1_000_000], "name a search", at="finish_sequence_ids[0]"),
    Bad("BeamStep", "has_more_chunks", True, "last chunk", at="finish_sequence_ids",
        also={"finish_sequence_ids": ["a"]}),
]  # fmt: skip

STEPS = [*TARGETS, *KINDS, *TOKENS, *LOGITS, *FORMS, *DRAFTS, *FILTERS, *MERGES, *BEAM_STEPS]

# The RPCs that name a batch without a revision; the base is the RPC.
LOOKUPS = [
    *(
        case
        for base in ("GetBatch", "DeleteBatch")
        for case in (
            Bad(base, "batch_id", "", f"{_NAMES} ... got ''"),
            Bad(base, "batch_id", "x" * 129, f"{_NAMES} ... (131 characters)"),
            Bad(base, "batch_id", _TEN_MEGABYTES, f"{_NAMES} ... (10485762 characters)"),
            Bad(base, "batch_id", "tab\tbed", f"{_NAMES} ... got 'tab\\tbed'"),
            Bad(base, "batch_id", "another", "no live batch", reason="BATCH_NOT_FOUND", **_GONE),
            Bad(base, "uid", bytes(15), "16 bytes ... got '15 bytes'"),
            Bad(base, "uid", bytes(16), "live with another uid", reason="UID_MISMATCH", **_GONE),
        )
    ),
    Bad("GetBatch", "view", 99, "BASIC or FULL ... got 99"),
    Bad("GetBatch", "view", -1, "BASIC or FULL ... got -1"),
    Bad("ListBatches", "page_size", -1, "0 or more ... got -1"),
    Bad("ListBatches", "page_size", -(2**31), "0 or more ... got -2147483648"),
    Bad("ListBatches", "page_token", _TEN_MEGABYTES, f"{_NAMES} ... (10485762 characters)"),
    Bad("ListBatches", "page_token", "\x00", f"{_NAMES} ... got '\\x00'"),
]  # fmt: skip
