"""Shared memory as a caller without the client library has it."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from typing import TYPE_CHECKING

import torch

from logitd.v1 import service_pb2, types_pb2

if TYPE_CHECKING:
    from helpers.wire import Wire

_DATA_TYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


class SharedRegion:
    """A sealed memory file that is registered until `close`."""

    def __init__(self, wire: Wire, num_bytes: int) -> None:
        descriptor = os.memfd_create("logits", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._memory = mmap.mmap(descriptor, num_bytes)
        self._side_socket = socket.socket(socket.AF_UNIX)
        self._side_socket.connect(wire.address.removeprefix("unix:") + ".memory")
        socket.send_fds(self._side_socket, [b"\1"], [descriptor])
        os.close(descriptor)
        token = self._side_socket.recv(16)
        request = service_pb2.RegisterSharedMemoryRequest(memory_file_token=token, byte_size=num_bytes)
        self.region_id: str = wire.call("RegisterSharedMemory", request).region_id

    def write(self, logits: torch.Tensor) -> types_pb2.Tensor:
        """Put logits at the start of the region; the message that names them."""
        data = logits.contiguous().view(torch.uint8).numpy().tobytes()
        self._memory[: len(data)] = data
        place = types_pb2.SharedMemoryRef(region_id=self.region_id)
        return types_pb2.Tensor(data_type=_DATA_TYPES[logits.dtype], shape=logits.shape, shared_memory=place)

    def read(self, like: torch.Tensor) -> torch.Tensor:
        """What the start of the region holds, as logits of this shape and type."""
        data = bytearray(self._memory[: like.numel() * like.element_size()])
        return torch.frombuffer(data, dtype=like.dtype).view(like.shape)

    def close(self) -> None:
        self._side_socket.close()
        self._memory.close()
