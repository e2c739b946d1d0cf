"""Wrong values for every field of the drafts of an Apply, and rows of logits that are none of their positions."""

from __future__ import annotations

from helpers.bad_input import Bad
from helpers.wire import ints, tensor
from logitd.v1.types_pb2 import APPLY_FORM_EDITS

_BASE, _EDITS = "Apply with drafts", "Apply of edits with drafts"
_MOST = 2**31 - 1
# A chain's paths have n (n + 1) / 2 tokens together, of 262144 that may be.
_LONG = ints(1) * 724
_WIDE = 262_145
_NO_TREE = {"drafts.parents": None}

_TOKEN_IDS = [
    Bad(_BASE, "drafts.token_ids", ints(0, -1, 1), "[0, 6) ... got -1", at="drafts.token_ids[1]"),
    Bad(_BASE, "drafts.token_ids", ints(6, 0, 1), "[0, 6) ... got 6", at="drafts.token_ids[0]"),
    Bad(_BASE, "drafts.token_ids", ints(0, 1, _MOST), f"[0, 6) ... got {_MOST}", at="drafts.token_ids[2]"),
    Bad(_BASE, "drafts.token_ids", bytes(11), "multiple of 4 bytes ... got '11 bytes'"),
    Bad(_BASE, "drafts.token_ids", b"", "number of tokens, 0 ... got [0, 3, 3]", at="drafts.row_splits"),
    Bad(_BASE, "drafts.token_ids", ints(1, 2, 3, 4), "number of tokens, 4", at="drafts.row_splits"),
    Bad(_BASE, "drafts.token_ids", _LONG, "paths of at most 262144 tokens together, got 'more, of 724 drafts'",
        also={**_NO_TREE, "drafts.row_splits": ints(0, 0, 724)}),
    Bad(_BASE, "drafts.token_ids", ints(1) * _WIDE, f"paths of at most 262144 tokens ... of {_WIDE} drafts",
        also={"drafts.parents": ints(-1) * _WIDE, "drafts.row_splits": ints(0, _WIDE, _WIDE)}),
]  # fmt: skip

_ROW_SPLITS = [
    Bad(_BASE, "drafts.row_splits", None, "one a row, 2 ... got 3", at="drafts.token_ids"),
    Bad(_BASE, "drafts.row_splits", ints(0, 3), "shape (3,) ... got (2,)"),
    Bad(_BASE, "drafts.row_splits", ints(0, 1, 2, 3), "shape (3,) ... got (4,)"),
    Bad(_BASE, "drafts.row_splits", ints(0, 4, 3), "never fall ... got [0, 4, 3]"),
    Bad(_BASE, "drafts.row_splits", ints(1, 3, 3), "start with 0 ... got [1, 3, 3]"),
    Bad(_BASE, "drafts.row_splits", ints(0, 3, 2), "number of tokens, 3 ... got [0, 3, 2]"),
    Bad(_BASE, "drafts.row_splits", ints(0, -1, 3), "never fall ... got [0, -1, 3]"),
    Bad(_BASE, "drafts.row_splits", bytes(6), "multiple of 4 bytes ... got '6 bytes'"),
]

_PARENTS = [
    Bad(_BASE, "drafts.parents", ints(-1, 0), "shape (3,), one a draft, got (2,)"),
    Bad(_BASE, "drafts.parents", ints(-1, 0, 0, 0), "shape (3,), one a draft, got (4,)"),
    Bad(_BASE, "drafts.parents", bytes(10), "multiple of 4 bytes ... got '10 bytes'"),
    # Itself, one that comes later (so that the two go round in a circle), none that there is.
    Bad(_BASE, "drafts.parents", ints(0, 0, 0), "[-1, 0), a draft before its own ... got 0", at="drafts.parents[0]"),
    Bad(_BASE, "drafts.parents", ints(-1, 1, 0), "[-1, 1) ... got 1", at="drafts.parents[1]"),
    Bad(_BASE, "drafts.parents", ints(-1, 2, 1), "[-1, 1) ... got 2", at="drafts.parents[1]"),
    Bad(_BASE, "drafts.parents", ints(-1, 0, 3), "[-1, 2) ... got 3", at="drafts.parents[2]"),
    Bad(_BASE, "drafts.parents", ints(-1, 0, _MOST), f"[-1, 2) ... got {_MOST}", at="drafts.parents[2]"),
    Bad(_BASE, "drafts.parents", ints(-2, 0, 0), "[-1, 0) ... got -2", at="drafts.parents[0]"),
    Bad(_BASE, "drafts.parents", ints(-1, -(2**31), 0), "[-1, 1) ... got -2147483648", at="drafts.parents[1]"),
    # Of another row.
    Bad(_BASE, "drafts.parents", ints(-1, 0, 1), "[-1, 0) ... got 1", at="drafts.parents[2]",
        also={"drafts.row_splits": ints(0, 2, 3)}),
]  # fmt: skip

_MODES = [
    Bad(_BASE, "drafts.mode", 99, "EXACT or SGLANG_RELAXED ... got 99"),
    Bad(_BASE, "drafts.mode", -1, "EXACT or SGLANG_RELAXED ... got -1"),
]

_POSITIONS = [
    Bad(_BASE, "first_row", -1, "[0, 5) ... got -1"),
    Bad(_BASE, "first_row", 5, "[0, 5) ... got 5"),
    Bad(_BASE, "first_row", 1, "at most 4 ... got 5", at="logits.shape[0]"),
    Bad(_BASE, "logits.shape", [6, 6], "at most 5 ... got 6", at="logits.shape[0]"),
    Bad(_BASE, "logits.shape", [4, 6], "4 x 6 x 4, got '120 bytes'", at="logits.data"),
    Bad(_BASE, "logits", None, "must be set ... got 'nothing'"),
    Bad(_BASE, "row_count", 5, "not be set but in form EDITS ... got 5"),
    Bad(_BASE, "form", APPLY_FORM_EDITS, "not be set in form EDITS ... got 'a value'", at="logits"),
    Bad(_EDITS, "row_count", 0, "[1, 5] ... got 0"),
    Bad(_EDITS, "row_count", 6, "[1, 5] ... got 6"),
    Bad(_EDITS, "row_count", 2, "[1, 1] ... got 2", also={"first_row": 4}),
    Bad(_EDITS, "first_row", 5, "[0, 5) ... got 5"),
    Bad(_EDITS, "drafts.token_ids", ints(0, 1, 6), "[0, 6) ... got 6", at="drafts.token_ids[2]"),
    Bad(_EDITS, "drafts.parents", ints(-1, 0, 2), "[-1, 2) ... got 2", at="drafts.parents[2]"),
    Bad(_EDITS, "logits", tensor([[0.0] * 6]), "not be set in form EDITS ... got 'a value'"),
]

DRAFTS = [*_TOKEN_IDS, *_ROW_SPLITS, *_PARENTS, *_MODES, *_POSITIONS]
