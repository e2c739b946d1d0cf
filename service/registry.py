"""The live batches: found by id, bounded in number and in state, gone when idle too long."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitd.service.errors import BatchExists, BatchNotFound, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitd.service.batch import Batch
    from logitd.service.config import ServerConfig
    from logitd.service.creation import BatchPlan


@dataclass(slots=True)
class _Entry:
    batch: Batch
    last_used: float


class BatchRegistry:
    """Batches by id, least recently used first. Runs in the worker's turn alone.

    State is reserved when a batch comes in, by what its sequences may grow to, so that only newcomers are refused.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.instance_id = uuid.uuid4().hex
        self._config = config
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.num_expired = 0

    def find_retry(self, plan: BatchPlan) -> Batch | None:
        """The batch that this same plan created, None if its id is free; raises `BatchExists`."""
        self.expire()
        entry = self._entries.get(plan.batch_id)
        if entry is None:
            return None
        created = entry.batch.plan
        is_same = (created.create_key, created.content_digest) == (plan.create_key, plan.content_digest)
        if not is_same or entry.batch.revision != 0:
            raise BatchExists
        self._touch(plan.batch_id)
        return entry.batch

    @property
    def batches(self) -> list[Batch]:
        """The live batches, least recently used first."""
        return [entry.batch for entry in self._entries.values()]

    @property
    def reserved_bytes(self) -> int:
        """Bytes of state that the live batches may grow to."""
        return sum(entry.batch.reserved_bytes for entry in self._entries.values())

    def check_room(self, plan: BatchPlan) -> None:
        """Raise `LimitExceeded` if there is no room for a batch of this plan."""
        if len(self._entries) >= self._config.max_batches:
            most = self._config.max_batches
            raise LimitExceeded("TOO_MANY_BATCHES", "max_batches", most, len(self._entries) + 1)
        self.check_growth(plan.reserved_bytes)

    def check_growth(self, more_bytes: int) -> None:
        """Raise `LimitExceeded` if the state may not grow by so many bytes."""
        wanted = self.reserved_bytes + more_bytes
        if wanted > self._config.max_state_bytes:
            raise LimitExceeded("TOO_MUCH_STATE", "max_state_bytes", self._config.max_state_bytes, wanted)

    def add(self, batch: Batch) -> None:
        """Take a batch in; its id is free and there is room."""
        self._entries[batch.plan.batch_id] = _Entry(batch, self._clock())

    def find(self, batch_id: str, uid: bytes) -> Batch:
        """The live batch, used now; raises `BatchNotFound` or `UidMismatch`."""
        self.expire()
        entry = self._entries.get(batch_id)
        if entry is None:
            raise BatchNotFound(self.instance_id)
        if uid:
            entry.batch.check_uid(uid)
        self._touch(batch_id)
        return entry.batch

    def remove(self, batch_id: str) -> None:
        """Let a live batch go."""
        del self._entries[batch_id]

    def list_after(self, batch_id: str, count: int) -> list[Batch]:
        """Up to `count` batches whose ids come after `batch_id`, by id."""
        self.expire()
        ids = sorted(key for key in self._entries if key > batch_id)
        return [self._entries[key].batch for key in ids[:count]]

    def expire(self) -> None:
        """Let go of what has been idle for too long."""
        oldest_allowed = self._clock() - self._config.idle_timeout_seconds
        while self._entries:
            batch_id, entry = next(iter(self._entries.items()))
            if entry.last_used >= oldest_allowed:
                return
            self.remove(batch_id)
            self.num_expired += 1

    def __len__(self) -> int:
        return len(self._entries)

    def _touch(self, batch_id: str) -> None:
        self._entries[batch_id].last_used = self._clock()
        self._entries.move_to_end(batch_id)
