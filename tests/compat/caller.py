"""All that the client of a release can do, against one server: `python -m compat.caller TARGET MEMORY_DIR SURFACE`.

It needs nothing but the client. Whoever starts it reads lines of JSON from it: {"do": ...} asks for something to be
done to the server and is answered by a line, {"answers": ...} is what every walk found and comes last.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import logitd.client
from logitd.client import AsyncClient, Client, LogitdError, RevisionMismatchError, RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable


class Caller:
    """Makes clients of one surface, sync or asyncio, and speaks with whoever started it."""

    def __init__(self, target: str, memory_dir: str, surface: str) -> None:
        self.target = target
        self.memory_dir = memory_dir
        self.is_async = surface == "asyncio"

    def connect(self, **options: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        """A client that can be entered by `async with`, whichever surface it has."""
        return opened((AsyncClient if self.is_async else Client)(self.target, **options))

    def ask(self, action: str) -> None:
        """Has something done to the server: kill, start, restart (which does not wait for the start), pause, go_on."""
        say({"do": action})
        assert sys.stdin.readline(), "nobody answered"

    def callback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What `BeamBatch.search` takes."""

        async def call(*args: Any) -> Any:
            return function(*args)

        return call if self.is_async else function


async def settle(value: Any) -> Any:
    """The result of a call, whichever surface it was made on."""
    return await value if inspect.isawaitable(value) else value


@contextlib.asynccontextmanager
async def opened(value: Any) -> AsyncIterator[Any]:
    """Enters a client, a batch or shared logits, whichever surface they have."""
    thing = await settle(value)
    if hasattr(thing, "__aenter__"):
        async with thing:
            yield thing
    else:
        with thing:
            yield thing


async def listed(values: Any) -> list[Any]:
    """All that a list gives, whichever surface it is of."""
    return [value async for value in values] if hasattr(values, "__aiter__") else list(values)


async def refused(action: Callable[[], Any]) -> dict[str, Any]:
    """How a call fails: the class with those that it derives from, and all of its fields."""
    try:
        await settle(action())
    except RpcError as error:
        kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, LogitdError)]
        details = plain(error.details) | {"code": error.code.name}
        if "instance_id" in error.metadata:  # random
            details["metadata"]["instance_id"] = len(error.metadata["instance_id"])
        found = {"kinds": kinds, "details": details, "nothing_changed": error.nothing_changed}
        if isinstance(error, RevisionMismatchError):
            found |= {"expected": error.expected, "actual": error.actual}
        return found
    raise AssertionError("it was not refused")


def plain(value: Any) -> Any:
    """The same in JSON, to the bit."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "bytes": value.tobytes().hex()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def walk_all(caller: Caller, walks: Iterable[Callable[[Caller, dict[str, Any]], Any]]) -> dict[str, Any]:
    """What each walk noted."""
    answers: dict[str, Any] = {}
    for walk in walks:
        notes: dict[str, Any] = {}
        await walk(caller, notes)
        answers[walk.__name__] = plain(notes)
    return answers


def main() -> None:
    from compat.walks_beams import BEAM_WALKS
    from compat.walks_faults import FAULT_WALKS
    from compat.walks_penalties import PENALTY_WALKS

    walks = [*PENALTY_WALKS, *BEAM_WALKS, *FAULT_WALKS]
    answers = asyncio.run(walk_all(Caller(*sys.argv[1:]), walks))
    client = {"version": importlib.metadata.version("logitd"), "file": logitd.client.__file__}
    say({"answers": answers, "client": client})


if __name__ == "__main__":
    main()
