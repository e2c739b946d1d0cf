"""A program that forks clients to be killed: it imports so little that a fork takes a millisecond.

It reads a line of JSON a client and answers "born PID"; each client says "ready PID" when it has sent all of its
`parts`. Between two parts it waits for a reply. With a `side_socket` it hands a memory file over before the first part;
in the parts TOKEN stands for the token that it got, and REGION for the region id that a reply brought.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import signal
import socket
import sys
from typing import Any

from helpers.faults_http2 import count_replies

TOKEN = b"TOKENTOKENTOKEN!"
REGION = b"REGION-REGION-REGION-REGION-REGI"
_REGION_REPLY = re.compile(rb"\x0a\x20([\w-]{32})")
_REGION_BYTES = 1 << 20
_LONGEST_LIFE = 60


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead leave nothing behind
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            os.close(0)
            live(json.loads(line))
        say("born", pid)


def live(plan: dict[str, Any]) -> None:
    """A client's life, which a signal ends, if need be its own."""
    signal.alarm(_LONGEST_LIFE)
    token = region = b""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(plan["socket"])
    if plan["side_socket"]:
        token, *_held = hand_over(plan["side_socket"])  # the connection keeps the region alive
    received = b""
    for number, part in enumerate(plan["parts"]):
        data = base64.b64decode(part).replace(TOKEN, token or TOKEN).replace(REGION, region or REGION)
        while count_replies(received) < number:
            received += connection.recv(1 << 16)
            found = _REGION_REPLY.search(received)
            region = found[1] if found else region
            data = data.replace(REGION, region or REGION)
        connection.sendall(data)
    say("ready", os.getpid())
    while True:
        signal.pause()


def hand_over(path: str) -> tuple[bytes, socket.socket]:
    memory = os.memfd_create("victim", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, _REGION_BYTES)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    side_socket = socket.socket(socket.AF_UNIX)
    side_socket.connect(path)
    socket.send_fds(side_socket, [b"\1"], [memory])
    return side_socket.recv(16), side_socket


def say(word: str, pid: int) -> None:
    os.write(1, f"{word} {pid}\n".encode())


if __name__ == "__main__":
    main()
