"""The rule for which rows of a batch a message may carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitd.service.errors import InvalidField

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_rows(path: str, first_row: int, shape: Sequence[int], num_rows: int) -> None:
    """Raise `InvalidField` unless the rows of a message, `shape[0]` from `first_row` on, are rows of the batch.

    A shape that is not [rows, columns] is left to those who read the tensor.
    """
    if num_rows == 0:
        raise InvalidField("first_row", "must be a row of the batch, which has none left", first_row)
    if not 0 <= first_row < num_rows:
        raise InvalidField("first_row", f"must be in [0, {num_rows})", first_row)
    if len(shape) == 2 and shape[0] > num_rows - first_row:
        rule = f"must be at most {num_rows - first_row}, the rows from first_row on"
        raise InvalidField(f"{path}.shape[0]", rule, shape[0])
