"""The one place where jobs run, one at a time: on a thread of its own, or, the quick ones, where they are asked for."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Worker(ThreadPoolExecutor):
    """An executor of one thread, which also lets the event loop do a job at once when no other one runs.

    Two changes of thread cost as much as a small step does.
    """

    def __init__(self, prepare_thread: Callable[[], None]) -> None:
        super().__init__(1, thread_name_prefix="logitd-cpu", initializer=prepare_thread)
        self._turn = threading.Lock()

    def submit(self, job: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Do a job on the thread, when its turn comes."""
        return super().submit(self._take_turn, job, *args, **kwargs)

    async def run(self, job: Callable[..., _T], *arguments: object, is_quick: bool = False) -> _T:
        """Do a job: here and now if it is quick and none other runs, else on the thread.

        A job that was begun is finished, whether or not the caller still waits.
        """
        if is_quick and self._turn.acquire(blocking=False):
            try:
                return job(*arguments)
            finally:
                self._turn.release()
        return await asyncio.get_running_loop().run_in_executor(self, job, *arguments)

    def _take_turn(self, job: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        with self._turn:
            return job(*arguments, **named)
