"""Where logits lie and how they are worked on: one backend a file, opened by `open_logits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitd.sampling.backends.host import HostLogits

if TYPE_CHECKING:
    from logitd.sampling.backends.base import Logits, LogitsBackend

__all__ = ["open_logits"]


def open_logits(logits: Logits) -> LogitsBackend:
    """The backend for [R, W] logits: numpy on the CPU, where it is 2 to 3 times faster at one row; else torch."""
    if isinstance(logits, np.ndarray) or logits.device.type == "cpu":
        return HostLogits(logits)
    from logitd.sampling.backends.device import DeviceLogits  # a missing accelerator never breaks an import

    return DeviceLogits(logits)
