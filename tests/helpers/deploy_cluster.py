"""The shared overlay as processes: its servers, and real Envoys with its configuration, on loopback addresses."""

from __future__ import annotations

import copy
import json
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc

from helpers.deploy_manifests import Bundle, yaml
from helpers.deploy_sandbox import SECONDS, Mount, Sandbox, free_port, python_mounts
from helpers.deploy_tools import need_tool
from logitd.client import Client
from logitd.service.config import split_address
from logitd.v1 import service_pb2, service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

    from helpers.deploy_manifests import Container, Doc
    from helpers.deploy_sandbox import Contained

_ROUTES = 40


class SharedCluster:
    """Starts at once. Server number i has the address 127.0.0.(2 + i), with the ports of all the others."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        self._folder = folder
        self._resources = resources
        bundle = Bundle.of("shared")
        (self.server_container,) = bundle.servers
        (self._envoy_container,) = (each for each in bundle.containers if each.spec["name"] == "envoy")
        config = self.server_container.config()
        settings = ("listen", "health_listen", "metrics_listen")
        self._ports = {split_address(name, getattr(config, name))[1]: free_port() for name in settings}
        self._server_port = self._ports[split_address("listen", config.listen)[1]]
        self.num_servers = _replicas(self.server_container)
        self.servers = [self._start_server(number) for number in range(self.num_servers)]
        self._proxies = [
            _Proxy(bundle.envoy_config, self._server_port) for _ in range(_replicas(self._envoy_container))
        ]
        self.envoys = [self._start_envoy(number) for number in range(len(self._proxies))]

    @property
    def address(self) -> str:
        """What decoders connect to: one of the Envoys, another one if that is gone, as a service does it."""
        return "ipv4:" + ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        """Those of the Envoys."""
        return [f"127.0.0.1:{proxy.ports['grpc']}" for proxy in self._proxies]

    def restore(self) -> None:
        """Start again what has ended, and wait until the Envoys know."""
        for number, server in enumerate(self.servers):
            if not server.is_running:
                self.servers[number] = self._start_server(number)
        for number, envoy in enumerate(self.envoys):
            if not envoy.is_running:
                self.envoys[number] = self._start_envoy(number)
        self.wait_for_healthy(self.num_servers)

    def fetch(self, port: str, path: str, number: int = 0) -> str:
        """The body of a page that an Envoy serves on the port of that name."""
        url = f"http://127.0.0.1:{self._proxies[number].ports[port]}{path}"
        with urllib.request.urlopen(url, timeout=5) as page:
            return str(page.read().decode())

    def wait_for_healthy(self, count: int) -> None:
        """Until the Envoys hold so many servers for healthy, and calls come to all of them."""
        self.wait_for_known(count)
        # Their workers learn a little later than their admin interfaces.
        self._wait_until_all_envoys(lambda number: self._count_reached(number) == count)

    def wait_for_known(self, count: int) -> None:
        """Until the Envoys' admin interfaces say so many servers are healthy."""
        self._wait_until_all_envoys(lambda number: self._count_healthy(number) == count)

    def batches(self, number: int) -> set[str]:
        """The ids of the batches that a server has, asked past Envoy."""
        with Client(f"127.0.0.{2 + number}:{self._server_port}") as client:
            return {batch.batch_id for batch in client.list_batches()}

    def locate(self) -> list[tuple[str, int]]:
        """Each live batch with its server; of the servers that run."""
        running = [number for number, server in enumerate(self.servers) if server.is_running]
        return sorted((batch_id, number) for number in running for batch_id in self.batches(number))

    def _wait_until_all_envoys(self, is_so: Callable[[int], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        running = [number for number, envoy in enumerate(self.envoys) if envoy.is_running]
        while time.monotonic() < deadline:
            if all(is_so(number) for number in running):
                return
            time.sleep(0.1)
        raise AssertionError("\n".join(each.output for each in (*self.envoys, *self.servers)))

    def _count_healthy(self, number: int) -> int:
        try:
            clusters = json.loads(self.fetch("admin", "/clusters?format=json", number))["cluster_statuses"]
        except OSError:
            return 0
        hosts = next(each for each in clusters if each["name"] == "logitd").get("host_statuses", ())
        return sum(host["health_status"] == {"eds_health_status": "HEALTHY"} for host in hosts)

    def _count_reached(self, number: int) -> int:
        reached = set()
        with grpc.insecure_channel(self.addresses[number]) as channel:
            stub = service_pb2_grpc.LogitProcessorServiceStub(channel)
            for route in range(_ROUTES):
                metadata = (("x-logitd-route", f"{route}"),)
                try:
                    reply = stub.GetCapabilities(service_pb2.GetCapabilitiesRequest(), metadata=metadata, timeout=5)
                except grpc.RpcError:
                    return -1
                reached.add(reply.instance_id)
        return len(reached)

    def _start_server(self, number: int) -> Contained:
        flags = []
        for flag in self.server_container.spec["args"]:
            for port, free in self._ports.items():
                flag = flag.replace(f"0.0.0.0:{port}", f"127.0.0.{2 + number}:{free}")
            flags.append(flag)
        return self._start(f"server-{number}", self.server_container, [sys.executable, "-m", "logitd.service", *flags])

    def _start_envoy(self, number: int) -> Contained:
        folder = self._folder / f"config-{number}"
        folder.mkdir(exist_ok=True)
        (folder / "envoy.yaml").write_text(yaml.safe_dump(self._proxies[number].config))
        # /etc is this machine's.
        flags = [flag.replace("/etc/envoy", "/envoy") for flag in self._envoy_container.spec["args"]]
        command = [str(need_tool("envoy")), *flags]
        return self._start(f"envoy-{number}", self._envoy_container, command, Mount(folder, "/envoy"))

    def _start(self, name: str, container: Container, command: list[str], *mounts: Mount) -> Contained:
        context = container.spec["securityContext"]
        root = self._folder / f"{name}-root"
        root.mkdir(exist_ok=True)
        environment = {"PYTHONDONTWRITEBYTECODE": "1", **container.environment}
        user = (context["runAsUser"], context["runAsGroup"], ())
        sandbox = Sandbox(root, [*python_mounts(), *mounts], user, environment)
        return self._resources.enter_context(sandbox.running(command, self._folder / f"{name}.log"))


class _Proxy:
    """An Envoy's configuration with other addresses, and nothing else changed; its ports by listener."""

    def __init__(self, config: Doc | None, server_port: int) -> None:
        assert config is not None
        self.config = copy.deepcopy(config)
        self.ports = {name: free_port() for name in ("admin", "grpc", "operations")}
        static = self.config["static_resources"]
        _move(self.config["admin"], "127.0.0.1", self.ports["admin"])
        for listener in static["listeners"]:
            _move(listener, "127.0.0.1", self.ports[listener["name"]])
        endpoints = {
            cluster["name"]: [each["endpoint"] for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
            for cluster in static["clusters"]
        }
        _move(endpoints["admin"][0], "127.0.0.1", self.ports["admin"])
        for number, endpoint in enumerate(endpoints["logitd"]):
            _move(endpoint, f"127.0.0.{2 + number}", server_port)


def _move(owner: dict[str, Any], host: str, port: int) -> None:
    owner["address"]["socket_address"].update(address=host, port_value=port)


def _replicas(container: Container) -> int:
    return int(container.pod.workload["spec"]["replicas"])
