"""Work that is done in pieces, so that nobody waits long for a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Unfinished(NamedTuple):
    """What an operation returns instead of its reply while it is not through; `go_on` is a job of its own."""

    go_on: Callable[[], bytes | Unfinished]
