"""What a wrong request is: a right one with a field set wrong, and what the server must say of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from helpers.wire import Failure

# Fits into the smallest limit on metadata that peers have, with room for what proxies add.
MOST_ERROR_BYTES = 4096
_SHORT = 40


@dataclass(frozen=True)
class Bad:
    """One wrong value.

    Attributes
    ----------
    base : str
        Which right request is spoiled.
    path : str
        The field that is set; a field in a list as ``sequences[0]``.
    value : object
        What it is set to. None: not set. A function: of what stands there.
    says : str
        Parts of the error's text in their order, divided by `` ... ``: the rule, and what came.
    at : str
        The field path in the error where it is not `path`; "-" for an error that is not about a field.
    also : mapping
        Further fields that the case needs.
    """

    base: str
    path: str
    value: Any
    says: str
    at: str = ""
    also: Mapping[str, Any] = field(default_factory=dict)
    code: str = "INVALID_ARGUMENT"
    reason: str = "INVALID_FIELD"

    def __str__(self) -> str:
        return f"{self.base}: {self.path} = {_shorten(self.value)}"

    def spoil(self, request: Message) -> None:
        """Set the fields of a right request."""
        for path, value in {**self.also, self.path: self.value}.items():
            set_field(request, path, value)

    def check(self, failure: Failure) -> None:
        """Assert that a call failed as it must."""
        assert (failure.code, failure.reason) == (self.code, self.reason), failure
        assert failure.num_bytes < MOST_ERROR_BYTES
        parts = ".*".join(re.escape(part) for part in self.says.split(" ... "))
        assert re.search(parts, failure.message, re.DOTALL), failure.message
        if self.at == "-":
            assert failure.field == ""
            return
        assert failure.field == (self.at or self.path)
        assert failure.message == f"{failure.field} {failure.description}"
        assert re.search(parts, failure.description, re.DOTALL), failure.description


def set_field(message: Message, path: str, value: Any) -> None:
    """Set a field as the wire allows it, whatever number an enum has."""
    parent, name, index = _find(message, path)
    current = getattr(parent, name) if index is None else getattr(parent, name)[index]
    if callable(value):
        value = value(current)
    if value is None:
        parent.ClearField(name)
    elif isinstance(value, list):
        parent.ClearField(name)
        getattr(parent, name).extend(value)
    elif hasattr(value, "DESCRIPTOR"):
        current.CopyFrom(value)
    elif index is not None:
        getattr(parent, name)[index] = value
    else:
        setattr(parent, name, value)


def leaf_fields(message: Descriptor, prefix: str) -> Iterator[str]:
    """Every scalar of a message and of the messages in it, as ``Root.outer.inner``."""
    for part in message.fields:
        path = f"{prefix}.{part.name}"
        if part.type == FieldDescriptor.TYPE_MESSAGE:
            yield from leaf_fields(part.message_type, path)
        else:
            yield path


def leaf_of(root: str, path: str) -> str:
    """The scalar that a case's path leads to, in the form of `leaf_fields`."""
    return f"{root}." + re.sub(r"\[\d+\]", "", path)


def _shorten(value: object) -> str:
    if callable(value):
        return "function"
    text = repr(value[:_SHORT] if isinstance(value, str | bytes | list) else value)
    return re.sub(r"\s+", " ", text)[:_SHORT]


def _find(message: Message, path: str) -> tuple[Any, str, int | None]:
    owner: Any = message
    *outer, last = path.split(".")
    for part in outer:
        name, index = _split_index(part)
        owner = getattr(owner, name) if index is None else getattr(owner, name)[index]
    return owner, *_split_index(last)


def _split_index(part: str) -> tuple[str, int | None]:
    name, bracket, index = part.partition("[")
    return name, int(index.rstrip("]")) if bracket else None
