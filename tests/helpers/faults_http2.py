"""Calls as bytes on a socket, so that one can end anywhere within a frame, a message or a step. No gRPC.

The victims of `faults_victim.py` use it too, which start in no time because they import nothing else.
"""

from __future__ import annotations

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_LARGEST_FRAME = 16_384
_FRAME_HEAD = 9
_SHORT = 127


def opening() -> bytes:
    """What a connection starts with."""
    return _PREFACE + _frame(_SETTINGS, 0, 0, b"")


def call(stream: int, path: str) -> bytes:
    """Begins a call; the first stream of a connection is 1, the next ones 3, 5, ..."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return _frame(_HEADERS, _END_HEADERS, stream, block)


def message(stream: int, data: bytes, *, is_last: bool = False) -> bytes:
    """One gRPC message on a call, in as many frames as it takes."""
    rest = b"\0" + len(data).to_bytes(4, "big") + data
    pieces = [rest[place : place + _LARGEST_FRAME] for place in range(0, len(rest), _LARGEST_FRAME)]
    flags = [0] * (len(pieces) - 1) + [_END_STREAM if is_last else 0]
    return b"".join(_frame(_DATA, flag, stream, piece) for flag, piece in zip(flags, pieces, strict=True))


def count_replies(received: bytes) -> int:
    """How many frames with data came from the server."""
    place = replies = 0
    while place + _FRAME_HEAD <= len(received):
        length = int.from_bytes(received[place : place + 3], "big")
        replies += received[place + 3] == _DATA and length > 0
        place += _FRAME_HEAD + length
    return replies


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _text(value: str) -> bytes:
    # An HPACK literal, without compression.
    assert len(value) < _SHORT
    return bytes((len(value),)) + value.encode()
