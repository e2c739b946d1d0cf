"""Regions of shared memory: logits that a decoder on the same node leaves where both can reach them."""

from __future__ import annotations

from logitd.service.regions.base import Region
from logitd.service.regions.memory_file import MemoryFileRegion
from logitd.service.regions.named_file import NamedFileRegion, clean_directory
from logitd.service.regions.registry import RegionRegistry

__all__ = ["MemoryFileRegion", "NamedFileRegion", "Region", "RegionRegistry", "clean_directory"]
