"""What schemas miss between objects: selectors that reach their pods, ports that are open, what Envoy is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitd.client import Client
from logitd.service.config import ServerConfig, split_address
from logitd.service.health import READINESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.deploy_manifests import Bundle, Doc, Pod

# Streams that a batch may have open at once: steps of one kind, and a reopened one whose end is still under way.
_STREAMS_PER_BATCH = 2


def services_reach_pods(bundle: Bundle) -> Iterator[str]:
    for service in bundle.all("Service"):
        name = service["metadata"]["name"]
        pods = [pod for pod in bundle.pods if pod.is_selected({"matchLabels": service["spec"]["selector"]})]
        if len(pods) != 1:
            yield f"Service {name}: the selector must mean the pods of one workload"
        for port in service["spec"]["ports"]:
            if any(port["targetPort"] not in _open_ports(pod) for pod in pods):
                yield f"Service {name}: port {port['targetPort']} must be one of its pods'"
    for workload in bundle.all("StatefulSet"):
        name = workload["spec"]["serviceName"]
        if not any(
            s["metadata"]["name"] == name and s["spec"].get("clusterIP") == "None" for s in bundle.all("Service")
        ):
            yield f"StatefulSet {workload['metadata']['name']}: its headless service must be there"


def network_is_closed_but_for_need(bundle: Bundle) -> Iterator[str]:
    policies = [policy["spec"] for policy in bundle.all("NetworkPolicy")]
    for pod in bundle.pods:
        mine = [policy for policy in policies if pod.is_selected(policy["podSelector"])]
        for kind in ("Ingress", "Egress"):
            if not any(kind in policy["policyTypes"] and kind.lower() not in policy for policy in mine):
                yield f"{pod.name}: a policy must deny all {kind}"
        for rule in (rule for policy in mine for rule in policy.get("ingress", ())):
            if not rule.get("from") or not rule.get("ports"):
                yield f"{pod.name}: a rule of Ingress must name peers and ports"
        opened = {
            port["port"] for policy in mine for rule in policy.get("ingress", ()) for port in rule.get("ports", ())
        }
        wanted = set(_open_ports(pod)) - _probe_ports(pod)
        if not wanted <= opened:
            yield f"{pod.name}: the ports {sorted(wanted - opened)} must be open to somebody"
    for policy in bundle.all("NetworkPolicy"):
        yield from _peers(bundle, policy)


def _peers(bundle: Bundle, policy: Doc) -> Iterator[str]:
    # Egress to pods of this bundle, on a port that they have and let us in by.
    for rule in policy["spec"].get("egress", ()):
        for peer in rule["to"]:
            if "namespaceSelector" in peer:
                continue
            targets = [pod for pod in bundle.pods if pod.is_selected(peer["podSelector"])]
            ports = {port["port"] for port in rule["ports"]}
            if not targets or any(not ports <= set(_open_ports(pod)) for pod in targets):
                yield f"NetworkPolicy {policy['metadata']['name']}: {sorted(ports)} must be ports of its peers"


def budgets_allow_one(bundle: Bundle) -> Iterator[str]:
    """Every workload that has replicas has a budget, and the budget never stops a node's drain for good."""
    budgets = [budget["spec"] for budget in bundle.all("PodDisruptionBudget")]
    for pod in bundle.pods:
        mine = [budget for budget in budgets if pod.is_selected(budget["selector"])]
        if pod.workload["spec"].get("replicas", 0) > 1 and len(mine) != 1:
            yield f"{pod.name}: one budget must select it"
        if any(budget.get("maxUnavailable") != 1 for budget in mine):
            yield f"{pod.name}: maxUnavailable must be 1"
    for budget in budgets:
        if not any(pod.is_selected(budget["selector"]) for pod in bundle.pods):
            yield f"the budget of {budget['selector']} must select a workload"


def envoy_knows_the_servers(bundle: Bundle) -> Iterator[str]:
    config = bundle.envoy_config
    if config is None:
        return
    cluster = _cluster(config)
    workload = next(bundle.all("StatefulSet"))
    server = next(server for server in bundle.servers if server.pod.workload is workload)
    name, service = workload["metadata"]["name"], workload["spec"]["serviceName"]
    port = split_address("listen", server.config().listen)[1]
    wanted = [(f"{name}-{number}.{service}", port) for number in range(workload["spec"]["replicas"])]
    if endpoints(cluster) != wanted:
        yield f"envoy: endpoints must be {wanted}, got {endpoints(cluster)}"
    if not next(doc for doc in bundle.all("Service") if doc["metadata"]["name"] == service)["spec"].get(
        "publishNotReadyAddresses"
    ):
        yield f"Service {service}: publishNotReadyAddresses must be true, Envoy asks for health itself"
    yield from _hashing(config, cluster)
    yield from _health(cluster, server.config())
    yield from _streams(config, cluster, server.config(), workload["spec"]["replicas"])


def _hashing(config: Doc, cluster: Doc) -> Iterator[str]:
    with Client("unix:nowhere", route="mine") as client:
        ((key, _),) = client._config.metadata(None)
    policy = grpc_listener(config)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["hash_policy"]
    if policy != [{"header": {"header_name": key}}]:
        yield f"envoy: hash_policy must be the header {key} that clients send"
    if cluster["lb_policy"] != "RING_HASH":
        yield "envoy: lb_policy must be RING_HASH"
    common = cluster["common_lb_config"]
    if not common.get("consistent_hashing_lb_config", {}).get("use_hostname_for_hashing"):
        yield "envoy: use_hostname_for_hashing must be set, a pod's address changes with each restart"
    if common.get("healthy_panic_threshold") != {"value": 0}:
        yield "envoy: healthy_panic_threshold must be 0"


def _health(cluster: Doc, server: ServerConfig) -> Iterator[str]:
    (check,) = cluster["health_checks"]
    if check["grpc_health_check"].get("service_name") != READINESS:
        yield f"envoy: health_checks must ask for {READINESS}"
    pause = max(_seconds(check[name]) for name in ("interval", "no_traffic_interval", "unhealthy_interval"))
    noticed = check["unhealthy_threshold"] * (pause + _seconds(check["timeout"]))
    if noticed >= server.linger_seconds:
        linger = server.linger_seconds
        yield f"envoy: a draining server must be noticed within its linger, {linger:g} s, got {noticed:g}"


def _streams(config: Doc, cluster: Doc, server: ServerConfig, replicas: int) -> Iterator[str]:
    listener = grpc_listener(config)
    if listener["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["timeout"] != "0s":
        yield "envoy: a route's timeout must be 0s, a stream lasts as long as its batch"
    if _seconds(listener["stream_idle_timeout"]) <= server.idle_timeout_seconds:
        yield "envoy: stream_idle_timeout must be above the server's idle_timeout_seconds"
    most = replicas * server.max_batches * _STREAMS_PER_BATCH
    limits = cluster["circuit_breakers"]["thresholds"][0]
    if min(limits["max_requests"], limits["max_pending_requests"]) < most:
        yield f"envoy: circuit breakers must allow {most} streams"
    upstream = next(iter(cluster["typed_extension_protocol_options"].values()))["explicit_http_config"]
    for side in (listener["http2_protocol_options"], upstream["http2_protocol_options"]):
        if side["max_concurrent_streams"] < server.max_batches * _STREAMS_PER_BATCH:
            yield "envoy: max_concurrent_streams must allow the batches of a server"
        if _seconds(side["connection_keepalive"]["interval"]) < server.min_ping_interval_seconds:
            yield "envoy: pings must be no more frequent than min_ping_interval_seconds"


def envoy_listens_where_its_pod_says(bundle: Bundle) -> Iterator[str]:
    config = bundle.envoy_config
    if config is None:
        return
    (envoy,) = (container for container in bundle.containers if container.spec["name"] == "envoy")
    opened = {each["name"]: _address(each) for each in config["static_resources"]["listeners"]}
    ports = sorted(port for _, port in opened.values())
    if sorted(envoy.ports.values()) != ports:
        yield f"{envoy.name}: ports must be {ports}"
    if _address(config["admin"])[0] != "127.0.0.1":
        yield "envoy: the admin interface must stay on loopback"
    asked = {(probe["httpGet"]["port"], probe["httpGet"]["path"]) for probe in envoy.probes.values()}
    scraped = (int(envoy.pod.annotations["prometheus.io/port"]), envoy.pod.annotations["prometheus.io/path"])
    listener = next(each for each in config["static_resources"]["listeners"] if each["name"] == "operations")
    served = {
        (opened["operations"][1], route["match"]["path"])
        for route in _manager(listener)["route_config"]["virtual_hosts"][0]["routes"]
    }
    if not asked | {scraped} <= served:
        yield f"{envoy.name}: probes and Prometheus must ask for one of {sorted(served)}"


def grpc_listener(config: Doc) -> Doc:
    """The connection manager that decoders reach."""
    return _manager(next(each for each in config["static_resources"]["listeners"] if each["name"] == "grpc"))


def endpoints(cluster: Doc) -> list[tuple[str, int]]:
    """Pairs of host and port."""
    found = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    return [_address(each["endpoint"]) for each in found]


def _cluster(config: Doc) -> Doc:
    return next(each for each in config["static_resources"]["clusters"] if each["name"] == "logitd")


def _manager(listener: Doc) -> Doc:
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _address(owner: Doc) -> tuple[str, int]:
    address = owner["address"]["socket_address"]
    return address["address"], address["port_value"]


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def _open_ports(pod: Pod) -> list[int]:
    return [port for container in pod.containers for port in container.ports.values()]


def _probe_ports(pod: Pod) -> set[int]:
    # Only the kubelet comes here, and it comes from the node.
    return {container.ports["health"] for container in pod.containers if "health" in container.ports}
