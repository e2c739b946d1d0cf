"""The container file, carried out without an engine, and what it makes, run as the manifests run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from helpers.deploy_containerfile import BuildError, Image, build, read_stages
from helpers.deploy_manifests import Bundle
from helpers.deploy_sandbox import SECONDS, Mount, Sandbox, make_volume
from helpers.deploy_tools import DEPLOY, OVERLAYS, ROOT, need_minutes, need_namespaces, need_tool
from logitd.client import Client, Penalties, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.deploy_sandbox import Contained

# Whichever test comes first waits for the build.
pytestmark = pytest.mark.timeout(400)

CONTAINERFILE = DEPLOY / "Containerfile"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FLAGS = ("--listen=", "--unix-socket=/run/logitd/s", "--shared-memory-dir=/run/logitd", "--linger-seconds=1")
LINGER, GRACE = 1, 5


@pytest.mark.parametrize("path", ["Containerfile", "overlays/sidecar-cpu/Containerfile"])
def test_container_files_have_no_findings(path: str) -> None:
    command = [str(need_tool("hadolint")), "--no-color", str(DEPLOY / path)]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_only_what_is_copied_is_sent_to_the_engine() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [word for text in read_stages(CONTAINERFILE)[0].all("COPY") for word in text.split()[:-1]]
    assert ignored == ["*", *(f"!{name}" for name in copied), "**/__pycache__"]
    packages = {Path(place).parts[0] for place in PYPROJECT["tool"]["setuptools"]["package-dir"].values()}
    assert packages <= set(copied)


def test_the_index_has_no_default() -> None:
    assert "WHEEL_INDEX" in read_stages(CONTAINERFILE)[0].all("ARG")


def test_manifests_run_the_user_and_the_version_of_the_image() -> None:
    image = Image(DEPLOY, read_stages(CONTAINERFILE)[-1])
    for server in (server for overlay in OVERLAYS for server in Bundle.of(overlay).servers):
        context = server.spec["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == image.user
        assert server.spec["image"].partition(":")[2].partition("-")[0] == PYPROJECT["project"]["version"]
        assert server.spec["args"][0] == image.command[0]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package index in a folder, with what the image installs; torch of the build that pip takes here."""
    need_namespaces()
    need_minutes()
    folder = tmp_path_factory.mktemp("index")
    project = PYPROJECT["project"]
    wanted = ["setuptools", *project["dependencies"], *project["optional-dependencies"]["server"]]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *constraints, "-d", str(folder / "wheels"), *wanted], check=True, cwd=folder)
    for wheel in (folder / "wheels").iterdir():
        name = re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
        page = folder / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        link = wheel.name.replace("+", "%2B")
        (page / "index.html").write_text(f'<a href="../../wheels/{link}">{wheel.name}</a>')
    return folder


@pytest.fixture(scope="module")
def image(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    (torch,) = (index / "wheels").glob("torch-*.whl")
    torch_build = torch.name.split("-")[1].partition("+")[2]
    arguments = {"WHEEL_INDEX": "file:///index/simple", "TORCH_BUILD": torch_build}
    return build(CONTAINERFILE, tmp_path_factory.mktemp("image"), arguments, mounts=[Mount(index, "/index")])


class Running:
    """The image as a container, with a volume that the test has too."""

    def __init__(self, container: Contained, volume: Path) -> None:
        self.container = container
        self.volume = volume
        self.address = f"unix:{volume}/s"

    def wait(self) -> None:
        deadline = time.monotonic() + SECONDS
        while '"serving"' not in self.container.output:
            assert self.container.is_running, self.container.output
            assert time.monotonic() < deadline, self.container.output
            time.sleep(0.05)


@contextmanager
def running(image: Image, folder: Path, *command: str, has_own_network: bool = False) -> Iterator[Running]:
    uid, gid = image.user
    volume = make_volume(folder / "volume", gid)
    (folder / "root").mkdir()
    mounts = [*image.mounts, Mount(volume, "/run/logitd", True)]
    sandbox = Sandbox(folder / "root", mounts, (uid, gid, ()), image.environment, has_own_network=has_own_network)
    with sandbox.running([*image.entrypoint, *command], folder / "log") as container:
        yield Running(container, volume)


def test_build_stops_without_an_index(tmp_path: Path) -> None:
    need_namespaces()
    with pytest.raises(BuildError, match="WHEEL_INDEX must be set"):
        build(CONTAINERFILE, tmp_path, {})


def test_image_holds_the_package_and_nothing_that_installs(image: Image) -> None:
    programs = os.listdir(image.folder / "opt/logitd/bin")
    assert "logitd" in programs
    assert not [name for name in programs if name.startswith("pip")]
    (libraries,) = (image.folder / "opt/logitd/lib").glob("python3.*/site-packages")
    packages = {path.name for path in libraries.iterdir()}
    assert {"logitd", "torch", "prometheus_client"} <= packages
    assert not packages & {"pip", "pytest", "hypothesis", "ruff"}
    assert (image.folder / "run/logitd").stat().st_uid == image.user[0]


@pytest.mark.parametrize("place", ["memory", "named"])
def test_container_serves_shared_memory_and_drains(image: Image, tmp_path: Path, place: str) -> None:
    with running(image, tmp_path, "serve", *FLAGS) as server:
        server.wait()
        directory = str(server.volume) if place == "named" else None
        with Client(server.address) as client, client.shared_logits(1, 4, shared_memory_dir=directory) as shared:
            batch = client.create_batch([Sequence(penalties=Penalties(repetition_penalty=2.0))], vocab_size=4)
            shared.array[...] = np.array([[2.0, -1.0, 0.5, 1.75]], np.float32)
            batch.apply_inplace(shared, [0])
            assert shared.array.tolist() == [[1.0, -1.0, 0.5, 1.75]]
            server.container.stop()
            assert server.container.wait(LINGER + GRACE) == 0
        assert list(server.volume.iterdir()) == []


def test_container_has_no_privilege_and_writes_nowhere_else(image: Image, tmp_path: Path) -> None:
    with running(image, tmp_path, "serve", *FLAGS) as server:
        server.wait()
        status = server.container.status()
        assert status["Uid"].split() == [str(image.user[0])] * 4
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"
        assert server.container.listening() == set()
        mounts = Path(f"/proc/{server.container.pid}/mounts").read_text().splitlines()
        writable = [line.split()[1] for line in mounts if "ro" not in line.split()[3].split(",")]
        assert [place for place in writable if not place.startswith(("/dev/", "/proc"))] == ["/run/logitd"]


def test_container_that_nobody_configured_listens_on_loopback_alone(image: Image, tmp_path: Path) -> None:
    with running(image, tmp_path, *image.command, has_own_network=True) as server:
        server.wait()
        assert {(address[-8:], port) for address, port in server.container.listening()} == {("0100007F", 50051)}
