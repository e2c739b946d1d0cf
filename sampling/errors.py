"""What `logitd.sampling` raises for a caller's values.

ValueError
└── ParameterError    a parameter or an array breaks a rule; nothing was changed
"""

from __future__ import annotations


class ParameterError(ValueError):
    """A caller's value breaks a rule.

    Attributes
    ----------
    field : str
        The parameter's name, with an index where it is one of several: ``rows[2].frequency_penalty``.
    rule : str
        What holds for it, as a phrase: ``must be finite and in [-2, 2]``.
    got : object
        What came.
    """

    def __init__(self, field: str, rule: str, got: object) -> None:
        super().__init__(f"{field} {rule}, got {got!r}")
        self.field = field
        self.rule = rule
        self.got = got

    def within(self, prefix: str) -> ParameterError:
        """The same error, its field seen from one level further out."""
        return ParameterError(f"{prefix}.{self.field}", self.rule, self.got)
