"""The regions of a server: found by their unguessable ids, bounded in bytes, gone with their owners."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitd.service.errors import InvalidField, LimitExceeded, NotSupported, RegionNotFound
from logitd.service.regions.memory_file import MemoryFileRegion
from logitd.service.regions.named_file import NamedFileRegion

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitd.service.config import ServerConfig
    from logitd.service.regions.base import Region

TOKEN_BYTES = 16
# A connection of the side socket, by a number of its own; named files belong to none.
_NO_OWNER = 0


@dataclass(slots=True)
class _Entry:
    region: Region
    owner: int
    last_used: float


class RegionRegistry:
    """Runs in the worker's turn alone.

    A memory file lives as long as the side-socket connection that handed it over; a named file as long as its lease,
    the idle timeout, is renewed by use.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._handed_over: dict[bytes, tuple[int, int]] = {}

    def hand_over(self, owner: int, descriptor: int) -> bytes:
        """Take a descriptor of the connection `owner`, to be registered by the token that is returned."""
        if len(self._handed_over) >= self._config.max_regions:
            os.close(descriptor)
            raise LimitExceeded("TOO_MANY_REGIONS", "max_regions", self._config.max_regions, len(self._handed_over) + 1)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._handed_over[token] = (owner, descriptor)
        return token

    def register_memory_file(self, token: bytes, byte_size: int) -> str:
        """Map a file that was handed over; its token is used up, its region lives with the connection."""
        if token not in self._handed_over:
            raise InvalidField("memory_file_token", "must be from an open connection and not used yet", "another")
        owner, descriptor = self._handed_over[token]
        self._check_room(byte_size)
        region = MemoryFileRegion.map(descriptor, byte_size)
        del self._handed_over[token]
        os.close(descriptor)
        return self._add(region, owner)

    def register_named_file(self, name: str, byte_size: int) -> str:
        """Map a file of the configured directory."""
        if not self._config.shared_memory_dir:
            raise NotSupported("shared memory by file name (--shared-memory-dir is not set)")
        self._check_room(byte_size)
        return self._add(NamedFileRegion.map(self._config.shared_memory_dir, name, byte_size), _NO_OWNER)

    def find(self, region_id: str) -> Region:
        """The region, used now; raises `RegionNotFound`."""
        self.expire()
        entry = self._entries.get(region_id)
        if entry is None:
            raise RegionNotFound
        entry.last_used = self._clock()
        return entry.region

    def unregister(self, region_id: str) -> None:
        """Let a region go; raises `RegionNotFound`."""
        self.find(region_id)
        self._remove(region_id)

    def release_owner(self, owner: int) -> None:
        """Let go of all that a connection handed over."""
        for token in [token for token, (whose, _) in self._handed_over.items() if whose == owner]:
            os.close(self._handed_over.pop(token)[1])
        for region_id in [region_id for region_id, entry in self._entries.items() if entry.owner == owner]:
            self._remove(region_id)

    def expire(self) -> None:
        """Let go of named files whose lease has run out."""
        oldest_allowed = self._clock() - self._config.idle_timeout_seconds
        stale = [
            region_id
            for region_id, entry in self._entries.items()
            if entry.owner == _NO_OWNER and entry.last_used < oldest_allowed
        ]
        for region_id in stale:
            self._remove(region_id)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of all regions."""
        return sum(entry.region.byte_size for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def _check_room(self, byte_size: int) -> None:
        self.expire()
        if len(self._entries) >= self._config.max_regions:
            raise LimitExceeded("TOO_MANY_REGIONS", "max_regions", self._config.max_regions, len(self._entries) + 1)
        wanted = self.mapped_bytes + max(byte_size, 0)
        if wanted > self._config.max_region_bytes:
            raise LimitExceeded("TOO_MUCH_SHARED_MEMORY", "max_region_bytes", self._config.max_region_bytes, wanted)

    def _add(self, region: Region, owner: int) -> str:
        region_id = secrets.token_urlsafe(24)
        self._entries[region_id] = _Entry(region, owner, self._clock())
        return region_id

    def _remove(self, region_id: str) -> None:
        self._entries.pop(region_id).region.close()
