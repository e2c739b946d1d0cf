"""What schemas miss about pods: privileges, limits, and a server that has what its flags say. Rules yield faults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from helpers.deploy_manifests import Bundle, Container, Pod, read_quantity
from logitd.service.config import ENVIRONMENT_PREFIX, ConfigError, ServerConfig, split_address
from logitd.service.health import LIVENESS, READINESS

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
_SPARE_SECONDS = 5
# A server at rest has 240 MB, most of it torch; the rest is for the work.
_SERVER_BYTES = 512 << 20
_LISTENERS = {"grpc": "listen", "health": "health_listen", "metrics": "metrics_listen"}
DECODER_STOP = "logitd-decoder-stop-seconds"


def nothing_is_privileged(bundle: Bundle) -> Iterator[str]:
    for pod in bundle.pods:
        for name in _HOST_NAMESPACES:
            if pod.spec.get(name):
                yield f"{pod.name}: {name} must not be set"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.name}: automountServiceAccountToken must be false"
        if any("hostPath" in volume for volume in pod.spec.get("volumes", ())):
            yield f"{pod.name}: volumes must not be of the host"
        if pod.spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.name}: seccompProfile must be RuntimeDefault"
        for container in pod.containers:
            yield from _privileges(container)


def _privileges(container: Container) -> Iterator[str]:
    context = container.spec.get("securityContext", {})
    required = {
        "runAsNonRoot": True,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for name, value in required.items():
        if context.get(name) != value:
            yield f"{container.name}: {name} must be {value}"
    for name in ("runAsUser", "runAsGroup"):
        if not context.get(name):
            yield f"{container.name}: {name} must be a number other than 0"
    if "seccompProfile" in context:
        yield f"{container.name}: seccompProfile must be the pod's"
    if any("hostPort" in port for port in container.spec.get("ports", ())):
        yield f"{container.name}: hostPort must not be set"


def everything_is_limited(bundle: Bundle) -> Iterator[str]:
    for container in bundle.containers:
        resources = container.spec.get("resources", {})
        for kind in ("requests", "limits"):
            for name in ("cpu", "memory"):
                if name not in resources.get(kind, {}):
                    yield f"{container.name}: {kind} must have {name}"
        memory = {resources.get(kind, {}).get("memory") for kind in ("requests", "limits")}
        if len(memory) > 1:
            yield f"{container.name}: memory must be requested up to its limit"
    for pod in bundle.pods:
        for volume in pod.spec.get("volumes", ()):
            if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
                yield f"{pod.name}: the volume {volume['name']} must have a sizeLimit"


def images_have_versions(bundle: Bundle) -> Iterator[str]:
    for container in bundle.containers:
        _, _, tag = container.spec["image"].rpartition("/")[2].partition(":")
        if tag in {"", "latest"}:
            yield f"{container.name}: the image must have a version"


def settings_are_accepted(bundle: Bundle) -> Iterator[str]:
    """The server's own parser reads the flags; variables that it does not know it would silently pass over."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in ServerConfig.__dataclass_fields__}
    for server in bundle.servers:
        try:
            server.config()
        except ConfigError as error:
            yield f"{server.name}: {error}"
        for name in server.environment:
            if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
                yield f"{server.name}: {name} must be a setting"
        if server.pod.spec.get("enableServiceLinks") is not False:
            yield f"{server.name}: enableServiceLinks must be false, its variables begin with {ENVIRONMENT_PREFIX}"


def ports_are_those_of_the_flags(bundle: Bundle) -> Iterator[str]:
    for server, config in _configs(bundle):
        listening = {}
        for name, setting in _LISTENERS.items():
            if address := getattr(config, setting):
                host, port = split_address(setting, address)
                listening[name] = port
                if host not in {"0.0.0.0", "::"}:
                    yield f"{server.name}: {setting} must be reached from outside of the pod, or be empty"
        if server.ports != listening:
            yield f"{server.name}: ports must be {listening}"
        scraped = server.pod.annotations.get("prometheus.io/port")
        if scraped != str(listening.get("metrics")):
            yield f"{server.name}: prometheus.io/port must be {listening.get('metrics')}"


def probes_ask_the_health_port(bundle: Bundle) -> Iterator[str]:
    wanted = {"startupProbe": READINESS, "readinessProbe": READINESS, "livenessProbe": LIVENESS}
    for server, config in _configs(bundle):
        port = split_address("health_listen", config.health_listen)[1] if config.health_listen else None
        for name, service in wanted.items():
            probe = server.probes.get(name, {}).get("grpc", {})
            if not probe or probe.get("port") != port:
                yield f"{server.name}: {name} must ask the health port by gRPC"
            elif probe.get("service", "") != service:
                yield f"{server.name}: {name} must ask for {service!r}"
    for container in bundle.containers:
        if not container.is_server and container.ports and len(container.probes) < len(wanted):
            yield f"{container.name}: what listens must have three probes"


def paths_are_in_memory_volumes(bundle: Bundle) -> Iterator[str]:
    for server, config in _configs(bundle):
        for path in filter(
            None, (config.unix_socket and os.path.dirname(config.unix_socket), config.shared_memory_dir)
        ):
            volume = server.volume_at(path)
            if volume is None or volume.get("emptyDir", {}).get("medium") != "Memory":
                yield f"{server.name}: {path} must lie in a writable volume of memory"


def grace_periods_add_up(bundle: Bundle) -> Iterator[str]:
    """One after the other: before the stop, the decoder, the server's linger and grace."""
    for pod in bundle.pods:
        seconds = _SPARE_SECONDS + float(pod.annotations.get(DECODER_STOP, 0)) + sum(map(_stop_seconds, pod.containers))
        given = pod.spec.get("terminationGracePeriodSeconds", 30)
        if given < seconds:
            yield f"{pod.name}: terminationGracePeriodSeconds must be at least {seconds:g}, got {given}"
        if any(container.is_sidecar for container in pod.containers) and DECODER_STOP not in pod.annotations:
            yield f"{pod.name}: {DECODER_STOP} must say how long the decoder takes"


def _stop_seconds(container: Container) -> float:
    before: float = container.spec.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    config = dict(_configs_of(container)).get(container.name)
    return before + (config.linger_seconds + config.grace_seconds if config else 0)


def memory_adds_up(bundle: Bundle) -> Iterator[str]:
    """State, regions, a message and its reply, one stream's queue, and the process itself."""
    for server, config in _configs(bundle):
        needed = _SERVER_BYTES + config.max_state_bytes + 2 * config.max_message_bytes + config.max_queued_bytes
        needed += config.max_region_bytes if config.unix_socket else 0
        if server.limit("memory") < needed:
            yield f"{server.name}: the memory limit must be at least {needed} bytes"
        if server.limit("cpu") < config.torch_threads + 1:
            yield f"{server.name}: the cpu limit must be at least torch_threads and one for the event loop"
        if server.environment.get("OMP_NUM_THREADS") != str(config.torch_threads):
            yield f"{server.name}: OMP_NUM_THREADS must be torch_threads"


def sidecars_serve_their_decoder(bundle: Bundle) -> Iterator[str]:
    for server, config in _configs(bundle):
        if not config.unix_socket:
            continue
        if not server.is_sidecar:
            yield f"{server.name}: a sidecar must be an init container with restartPolicy Always"
        if config.listen:
            yield f"{server.name}: listen must be empty where a Unix socket serves the pod"
        for decoder in server.pod.containers:
            if not decoder.is_server:
                yield from _shares(server, decoder, config)


def _shares(server: Container, decoder: Container, config: ServerConfig) -> Iterator[str]:
    if f"unix:{config.unix_socket}" not in (*decoder.spec.get("args", ()), *decoder.environment.values()):
        yield f"{decoder.name}: an argument or a variable must be unix:{config.unix_socket}"
    volume = server.volume_at(config.shared_memory_dir)
    if volume is None or decoder.volume_at(config.shared_memory_dir) != volume:
        yield f"{decoder.name}: the volume of the socket must be mounted at the same path"
        return
    size = read_quantity(volume["emptyDir"].get("sizeLimit", "0"))
    if config.max_region_bytes > size:
        yield f"{server.name}: max_region_bytes must be at most the volume's sizeLimit"
    if decoder.limit("memory") <= size:
        yield f"{decoder.name}: the memory limit must be above the volume's sizeLimit, which counts against it"
    if not server.pod.spec["securityContext"].get("fsGroup") or int(config.unix_socket_mode, 8) & 0o070 != 0o060:
        yield f"{server.name}: the socket must be open to the pod's fsGroup"


def _configs(bundle: Bundle) -> Iterator[tuple[Container, ServerConfig]]:
    for server in bundle.servers:
        for _, config in _configs_of(server):
            yield server, config


def _configs_of(container: Container) -> Iterator[tuple[str, ServerConfig]]:
    # Settings that the server refuses are another rule's.
    if container.is_server:
        try:
            yield container.name, container.config()
        except ConfigError:
            return


def claims_are_shared(bundle: Bundle) -> Iterator[str]:
    """A device that a pod claims is the decoder's and the sidecar's, by one name, from a template that is there."""
    for pod in bundle.pods:
        claims = {claim["name"]: claim["resourceClaimTemplateName"] for claim in pod.spec.get("resourceClaims", ())}
        templates = {doc["metadata"]["name"] for doc in bundle.all("ResourceClaimTemplate")}
        for name, template in claims.items():
            if template not in templates:
                yield f"{pod.name}: the claim template {template} must be there"
            for container in pod.containers:
                if {"name": name} not in container.spec.get("resources", {}).get("claims", ()):
                    yield f"{container.name}: the claim {name} must be named"
        yield from _counted_devices(pod)


def _counted_devices(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        resources: dict[str, Any] = container.spec.get("resources", {})
        if any("/" in name for kind in ("requests", "limits") for name in resources.get(kind, {})):
            yield f"{container.name}: a device must be claimed, a count of them is never shared"
