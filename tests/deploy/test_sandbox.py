"""The stand-in for a container engine keeps what it promises."""

from __future__ import annotations

import os
import time
from pathlib import Path

from helpers.deploy_sandbox import SECONDS, Mount, Sandbox, list_descriptors, make_volume
from helpers.deploy_tools import need_namespaces

need_namespaces()

USER = (65532, 65532, (10_002,))


def make_sandbox(folder: Path) -> Sandbox:
    (folder / "root").mkdir()
    volume = make_volume(folder / "volume", 10_002)
    return Sandbox(folder / "root", [Mount(volume, "/data", True)], USER, {"PATH": "/usr/bin:/bin"})


def test_only_the_volume_can_be_written(tmp_path: Path) -> None:
    sandbox, log = make_sandbox(tmp_path), tmp_path / "log"
    assert sandbox.run(["touch", "/data/mine"], log) == 0
    assert (tmp_path / "volume/mine").stat().st_gid == 10_002
    for place in ("/", "/tmp", "/usr", "/etc", "/dev"):
        assert sandbox.run(["touch", f"{place}/mine"], log) == 1
    assert log.read_text().count("Read-only file system") == 5


def test_nothing_outlives_its_block(tmp_path: Path) -> None:
    with make_sandbox(tmp_path).running(["sleep", "1000"], tmp_path / "log") as contained:
        place = Path(f"/proc/{contained.pid}")
        deadline = time.monotonic() + SECONDS
        while contained.status()["Uid"].split()[0] != "65532" and time.monotonic() < deadline:
            time.sleep(0.01)
    assert not place.exists()
    assert not list((tmp_path / "root").iterdir())


def test_what_is_closed_meanwhile_is_not_listed(tmp_path: Path) -> None:
    """As the folder of the descriptors itself is, for which there is one while it is read."""
    with (tmp_path / "open").open("w"):
        found = list_descriptors(os.getpid())
    assert str(tmp_path / "open") in found
    assert f"/proc/{os.getpid()}/fd" not in found
