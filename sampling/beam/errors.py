"""What a beam search raises for logits; parameters raise `logitd.sampling.errors.ParameterError`."""

from __future__ import annotations


class LogitsError(ValueError):
    """The logits of a step break a rule; nothing was changed.

    Attributes
    ----------
    rule : str
        What holds for them, as a phrase: ``must not be NaN or +inf``.
    got : object
        What came.
    row, token_id : int or None
        Where, when one item is at fault: the row as the step's message numbers it, and the column.
    """

    def __init__(self, rule: str, got: object, row: int | None = None, token_id: int | None = None) -> None:
        place = "" if row is None else f"[{row}, {token_id}]"
        super().__init__(f"logits{place} {rule}, got {got}")
        self.rule = rule
        self.got = got
        self.row = row
        self.token_id = token_id
