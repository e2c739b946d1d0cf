"""A container without an engine: namespaces, a read-only root of bind mounts, and a user without capabilities."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.deploy_tools import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SECONDS = 60
# Below what Linux gives to outgoing connections.
_PORTS = (20_000, 32_000)
_DEVICES = ("null", "zero", "full", "random", "urandom")
# SIOCSIFFLAGS with IFF_UP: a new network has its loopback down.
_RAISE_LOOPBACK = """
import fcntl, socket, struct
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, struct.pack("16sh", b"lo", 1))
"""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")

_given_ports: set[int] = set()


@dataclass(frozen=True)
class Mount:
    """A folder of this machine, and where the container sees it."""

    source: Path
    target: str
    is_writable: bool = False


def python_mounts() -> list[Mount]:
    """This interpreter, what it imports, and this repository."""
    places = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    outermost = [place for place in places if not any(other in place.parents for other in places)]
    return [Mount(place, str(place)) for place in sorted(outermost) if not str(place).startswith("/usr/")]


@dataclass(frozen=True)
class Sandbox:
    """What a container is made of. `user` is uid, gid and further groups; None: root, as in a build."""

    root: Path  # an empty folder to mount the container's root on
    mounts: Sequence[Mount]
    user: tuple[int, int, tuple[int, ...]] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    has_own_network: bool = False  # nothing but its own 127.0.0.1

    @contextmanager
    def running(self, command: Sequence[str], log: Path) -> Iterator[Contained]:
        """The command as the container's first process; killed at the end of the block."""
        with log.open("ab") as file:
            process = subprocess.Popen(self._command(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        contained = Contained(process, log)
        try:
            yield contained
        finally:
            # Its first process takes all others of the container along. unshare's --kill-child would not: the kernel
            # forgets it when the user changes.
            children = _children(process.pid)
            for first in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(first, signal.SIGKILL)
            if not children:
                process.kill()
            process.wait()

    def run(self, command: Sequence[str], log: Path) -> int:
        """The command's exit status."""
        with self.running(command, log) as contained:
            return contained.wait(10 * SECONDS)

    def _command(self, command: Sequence[str]) -> list[str]:
        script = "\n".join([*self._mount_lines(), self._exec_line(command)])
        network = ["--net"] if self.has_own_network else []
        return ["unshare", "--mount", "--pid", *network, "--fork", "sh", "-euc", script]

    def _mount_lines(self) -> Iterator[str]:
        if self.has_own_network:
            yield shlex.join([sys.executable, "-c", _RAISE_LOOPBACK])
        yield "umask 022"
        yield "mount --make-rprivate /"
        yield f"mount -t tmpfs -o mode=755 tmpfs {self.root}"
        for place in map(Path, _SYSTEM):
            if place.is_symlink():
                yield f"ln -s {os.readlink(place)} {self.root}{place}"
            elif place.is_dir():
                yield from self._bind(Mount(place, str(place)))
        for mount in self.mounts:
            yield from self._bind(mount)
        yield f"mkdir -p {self.root}/proc {self.root}/dev {self.root}/tmp"
        yield f"mount -t proc proc {self.root}/proc"
        for name in _DEVICES:
            yield f"touch {self.root}/dev/{name}"
            yield f"mount --bind /dev/{name} {self.root}/dev/{name}"
        yield f"mount -o remount,ro {self.root}"

    def _bind(self, mount: Mount) -> Iterator[str]:
        target = f"{self.root}{mount.target}"
        yield f"mkdir -p {target}"
        yield f"mount --bind {mount.source} {target}"
        if not mount.is_writable:
            yield f"mount -o remount,bind,ro {target}"

    def _exec_line(self, command: Sequence[str]) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        words = ["chroot", str(self.root)]
        if self.user is not None:
            uid, gid, groups = self.user
            words += ["setpriv", f"--reuid={uid}", f"--regid={gid}", f"--groups={','.join(map(str, (gid, *groups)))}"]
            words += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        words += ["env", "--ignore-environment", f"--chdir={self.folder}", *variables, *command]
        return f"exec {shlex.join(words)}"


class Contained:
    """A running container."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def output(self) -> str:
        """All that it has written so far."""
        return self._log.read_text()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number that this machine has for the container's first process."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if children := _children(self._process.pid):
                return children[0]
            time.sleep(0.01)
        raise AssertionError(self.output)

    def stop(self) -> None:
        """What the kubelet sends first."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """What it sends when its patience is over, or the kernel when memory is."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(SECONDS)

    def wait(self, seconds: float = SECONDS) -> int:
        """The exit status; raises if the container does not end in time."""
        return self._process.wait(seconds)

    def status(self) -> dict[str, str]:
        """The kernel's description of the first process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def listening(self) -> set[tuple[str, int]]:
        """Addresses, in the kernel's hexadecimal, and ports of the TCP sockets that it listens on."""
        sockets = list_descriptors(self.pid)
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    address, _, port = fields[1].partition(":")
                    found.add((address, int(port, 16)))
        return found


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def list_descriptors(pid: int) -> set[str]:
    """What the process has open, without what it closes while this looks: a probe's connection comes and goes."""
    found = set()
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"{folder}/{name}"))
    return found


def make_volume(place: Path, group: int) -> Path:
    """An emptyDir as the kubelet makes it for a pod's fsGroup."""
    place.mkdir()
    os.chown(place, 0, group)
    place.chmod(0o2777)
    return place


def free_port() -> int:
    """Another port each time, that no address has at this moment, nor is given for a connection of its own."""
    while True:
        port = random.randrange(*_PORTS)
        if port in _given_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            _given_ports.add(port)
            return port
