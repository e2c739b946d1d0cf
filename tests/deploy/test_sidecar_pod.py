"""The pod of the sidecar overlay, its containers as sandboxed processes and this test as its kubelet."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2

from helpers.deploy_containerfile import Image, build
from helpers.deploy_decoder import decode
from helpers.deploy_manifests import Bundle, Container, Pod
from helpers.deploy_pod_rules import DECODER_STOP
from helpers.deploy_sandbox import SECONDS, Mount, Sandbox, free_port, make_volume, python_mounts
from helpers.deploy_tools import DEPLOY, ROOT, need_file, need_minutes, need_namespaces, need_tool
from logitd.service.config import split_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from helpers.deploy_sandbox import Contained
    from logitd.client import Client

need_namespaces()

_SERVING = health_pb2.HealthCheckResponse.SERVING
_SPARE_SECONDS = 2
CONTAINERFILE = DEPLOY / "overlays" / "sidecar-cpu" / "Containerfile"
MODEL = ROOT / "build" / "interop" / "SmolLM2-135M-Instruct.Q4_1.gguf"


class PodOfProcesses:
    """Starts and ends containers as the kubelet would, from the rendered manifest."""

    def __init__(self, folder: Path, pod: Pod, resources: ExitStack) -> None:
        self.pod = pod
        self.sidecar = next(container for container in pod.containers if container.is_server)
        self.decoder = next(container for container in pod.containers if not container.is_server)
        self.volume = make_volume(folder / "volume", pod.spec["securityContext"]["fsGroup"])
        self._folder = folder
        self._resources = resources
        # The pod's addresses on loopback alone, where other tests listen too.
        config = self.sidecar.config()
        self._ports = {
            split_address(name, getattr(config, name))[1]: free_port() for name in ("health_listen", "metrics_listen")
        }

    @property
    def memory_dir(self) -> str:
        return self.sidecar.config().shared_memory_dir

    @property
    def host_socket(self) -> Path:
        return self.volume / os.path.basename(self.sidecar.config().unix_socket)

    def start_sidecar(self) -> Contained:
        flags = [self._patched(flag) for flag in self.sidecar.spec["args"]]
        return self._start(self.sidecar, [sys.executable, "-m", "logitd.service", *flags])

    def start_decoder(self, form: str, *, steps: int, pause: float) -> Contained:
        """The decoder of these tests in the place of the sample."""
        command = [sys.executable, str(ROOT / "tests/helpers/deploy_decoder.py"), "--form", form]
        command += ["--target", self.decoder.spec["args"][0], "--directory", self.memory_dir]
        return self._start(self.decoder, [*command, "--steps", str(steps), "--pause", str(pause)])

    def start_image(self, image: Image) -> Contained:
        """The decoder itself."""
        return self._start(self.decoder, [*image.entrypoint, *self.decoder.spec["args"]], image)

    def probe(self, name: str) -> bool:
        """One try of a probe of the sidecar."""
        probe = self.sidecar.probes[name]
        request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", "")).SerializeToString()
        with grpc.insecure_channel(f"127.0.0.1:{self._ports[probe['grpc']['port']]}") as channel:
            try:
                check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
                answer = check(request, timeout=probe.get("timeoutSeconds", 1))
            except grpc.RpcError:
                return False
        return bool(health_pb2.HealthCheckResponse.FromString(answer).status == _SERVING)

    def wait_until_started(self, sidecar: Contained) -> None:
        """Until the startup probe passes, as long as the manifest grants."""
        probe = self.sidecar.probes["startupProbe"]
        deadline = time.monotonic() + probe["periodSeconds"] * probe["failureThreshold"]
        while not self.probe("startupProbe"):
            assert sidecar.is_running, sidecar.output
            assert time.monotonic() < deadline, sidecar.output
            time.sleep(0.1)

    def wait_for_probe(self, name: str) -> None:
        """Until a probe passes."""
        deadline = time.monotonic() + SECONDS
        while not self.probe(name):
            assert time.monotonic() < deadline, name
            time.sleep(0.1)

    def _patched(self, flag: str) -> str:
        for port, free in self._ports.items():
            flag = flag.replace(f"0.0.0.0:{port}", f"127.0.0.1:{free}")
        return flag

    def _start(self, container: Container, command: list[str], image: Image | None = None) -> Contained:
        context = container.spec["securityContext"]
        group = self.pod.spec["securityContext"]["fsGroup"]
        mounts = [Mount(self.volume, mount["mountPath"], True) for mount in container.spec["volumeMounts"]]
        name = container.spec["name"]
        root = self._folder / f"{name}-root"
        root.mkdir(exist_ok=True)
        user = (context["runAsUser"], context["runAsGroup"], (group,))
        if image is None:
            environment = {"PYTHONDONTWRITEBYTECODE": "1", **container.environment}
            sandbox = Sandbox(root, [*python_mounts(), *mounts], user, environment)
        else:
            sandbox = Sandbox(root, [*image.mounts, *mounts], user, image.environment, image.workdir)
        return self._resources.enter_context(sandbox.running(command, self._folder / f"{name}.log"))

    @property
    def ports(self) -> set[int]:
        return set(self._ports.values())


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodOfProcesses]:
    with ExitStack() as resources:
        yield PodOfProcesses(tmp_path, Bundle.of("sidecar-cpu").pods[0], resources)


def lines(decoder: Contained) -> list[dict[str, object]]:
    return [json.loads(line) for line in decoder.output.splitlines(keepends=True) if line.endswith("\n")]


def wait_for(decoder: Contained, **wanted: object) -> dict[str, object]:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for line in lines(decoder):
            if wanted.items() <= line.items():
                return line
        assert decoder.is_running, decoder.output
        time.sleep(0.02)
    raise AssertionError(decoder.output)


def test_decoder_starts_when_the_sidecar_has_and_finds_it(pod: PodOfProcesses, undisturbed: Client) -> None:
    assert not pod.probe("startupProbe")
    pod.wait_until_started(pod.start_sidecar())
    pod.wait_for_probe("readinessProbe")
    pod.wait_for_probe("livenessProbe")
    decoder = pod.start_decoder("memory", steps=20, pause=0)
    assert wait_for(decoder, seed=0)["tokens"] == decode(undisturbed, seed=0, steps=20)


def test_sidecar_has_no_privilege_and_listens_where_the_manifest_says(pod: PodOfProcesses) -> None:
    sidecar = pod.start_sidecar()
    pod.wait_until_started(sidecar)
    status = sidecar.status()
    assert status["Uid"].split() == ["65532"] * 4
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert {port for _, port in sidecar.listening()} == pod.ports
    assert {address[-8:] for address, _ in sidecar.listening()} == {"0100007F"}  # 127.0.0.1
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(pod.host_socket))
    assert pod.host_socket.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("form", ["dense", "memory", "named"])
def test_decoder_outlives_its_sidecar(pod: PodOfProcesses, undisturbed: Client, form: str) -> None:
    """It is killed in the middle of a text, as for too much memory, and started again on the same volume."""
    abandoned = pod.volume / "logitd-abandoned"
    sidecar = pod.start_sidecar()
    pod.wait_until_started(sidecar)
    decoder = pod.start_decoder(form, steps=100, pause=0.03)
    wait_for(decoder, step=8)
    sidecar.kill()
    assert not any("tokens" in line for line in lines(decoder))
    assert pod.host_socket.exists()
    abandoned.touch()
    os.chown(abandoned, 65532, 65532)
    pod.wait_until_started(pod.start_sidecar())
    assert not abandoned.exists()
    assert wait_for(decoder, seed=0)["tokens"] == decode(undisturbed, seed=0, steps=100)
    assert wait_for(decoder, seed=1)["tokens"] == decode(undisturbed, seed=1, steps=100)


def test_pod_ends_in_order_and_in_time(pod: PodOfProcesses, undisturbed: Client) -> None:
    sidecar = pod.start_sidecar()
    pod.wait_until_started(sidecar)
    decoder = pod.start_decoder("named", steps=20, pause=0.2)
    wait_for(decoder, step=3)
    began = time.monotonic()
    decoder.stop()
    assert decoder.wait(float(pod.pod.annotations[DECODER_STOP])) == 0
    # It finished what it had begun, with the sidecar there to the last.
    assert lines(decoder)[-1] == {"seed": 0, "tokens": decode(undisturbed, seed=0, steps=20)}
    sidecar.stop()
    config = pod.sidecar.config()
    assert sidecar.wait(config.linger_seconds + config.grace_seconds + _SPARE_SECONDS) == 0
    assert time.monotonic() - began < pod.pod.spec["terminationGracePeriodSeconds"]
    assert list(pod.volume.iterdir()) == []


@pytest.fixture(scope="module")
def node_image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The sample decoder, by its container file; packages come from wherever npm gets them here."""
    need_minutes()
    need_tool("node")
    need_file(MODEL)
    context = tmp_path_factory.mktemp("context")
    for name in ("proto", "tests"):
        (context / name).symlink_to(ROOT / name)
    (context / "model.gguf").symlink_to(MODEL)
    folder = tmp_path_factory.mktemp("node")
    return build(CONTAINERFILE, folder, {"MODEL": "model.gguf"}, context=context)


@pytest.mark.timeout(600)
def test_sample_decodes_in_its_pod_and_ends(pod: PodOfProcesses, node_image: Image) -> None:
    """The Job of the overlay, from its images: once the decoder has ended, the sidecar is stopped."""
    assert node_image.command == pod.decoder.spec["args"]
    assert node_image.user[0] == pod.decoder.spec["securityContext"]["runAsUser"]
    sidecar = pod.start_sidecar()
    pod.wait_until_started(sidecar)
    decoder = pod.start_image(node_image)
    assert decoder.wait(500) == 0, decoder.output
    titles = [line.partition(":")[0] for line in decoder.output.splitlines()]
    assert titles[:4] == ["no penalties", *(f"penalties, {form}" for form in ("dense", "sparse", "edits"))]
    assert all(title.startswith("beam ") for title in titles[4:])
    sidecar.stop()
    assert sidecar.wait() == 0
