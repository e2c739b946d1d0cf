"""Wrong values for FilterBatch and MergeBatches, beside those of the target, which all mutations share."""

from __future__ import annotations

from helpers.bad_input import Bad

_NAMES = "1 to 128 printable ASCII characters"


def _first(name: str) -> str:
    return f"sequences[0].{name}"


FILTERS = [
    Bad("FilterBatch", _first("sequence_id"), "z", "name a sequence of the batch ... got 'z'"),
    Bad("FilterBatch", _first("sequence_id"), "", "name a sequence of the batch ... got ''"),
    Bad("FilterBatch", _first("sequence_id"), "x" * 1_000_000, "name a sequence of the batch"),
    Bad("FilterBatch", "sequences[1].sequence_id", "b", "unique within the batch ... got 'b'",
        at="sequences[1].new_sequence_id"),
    Bad("FilterBatch", "sequences[2].new_sequence_id", "b", "unique within the batch ... got 'b'"),
    Bad("FilterBatch", "sequences[2].new_sequence_id", "", "unique within the batch ... got 'a'"),
    Bad("FilterBatch", "sequences[2].new_sequence_id", "x" * 129, "at most 128 characters"),
]  # fmt: skip

MERGES = [
    Bad("MergeBatches", "source", None, f"{_NAMES} ... got ''", at="source.batch_id"),
    Bad("MergeBatches", "source.batch_id", "", f"{_NAMES} ... got ''"),
    Bad("MergeBatches", "source.batch_id", "x" * 129, f"{_NAMES} ... (131 characters)"),
    Bad("MergeBatches", "source.batch_id", "another", "no live batch", at="-", code="NOT_FOUND",
        reason="BATCH_NOT_FOUND"),
    Bad("MergeBatches", "source.uid", None, "16 bytes ... got '0 bytes'"),
    Bad("MergeBatches", "source.uid", bytes(17), "16 bytes ... got '17 bytes'"),
    Bad("MergeBatches", "source.uid", bytes(16), "live with another uid", at="-", code="NOT_FOUND",
        reason="UID_MISMATCH"),
    Bad("MergeBatches", "source.expected_revision", None, "must be set ... got 'nothing'"),
    Bad("MergeBatches", "source.expected_revision", -1, "0 or more ... got -1"),
    Bad("MergeBatches", "source.expected_revision", 7, "revision 0, got 7", at="-", code="FAILED_PRECONDITION",
        reason="REVISION_MISMATCH"),
]  # fmt: skip
