"""A bare gRPC server, what any service over this transport costs: bytes in, bytes out, nothing done.

A message's first 8 bytes, little-endian, are the length of the reply that it wants; -1 wants the message back.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

METHOD = "/bench.Bare/Exchange"
WANTED = struct.Struct("<q")
ECHO = -1


async def exchange(messages: AsyncIterator[bytes], call: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    zeros: dict[int, bytes] = {}
    async for message in messages:
        (wanted,) = WANTED.unpack_from(message)
        reply = message if wanted == ECHO else zeros.setdefault(wanted, bytes(wanted))
        await call.write(reply)


async def serve(address: str) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Exchange": grpc.stream_stream_rpc_method_handler(exchange)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bare", handlers),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
