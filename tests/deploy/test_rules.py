"""Each rule can fail: manifests are broken in one place, and the rule for that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers import deploy_cluster_rules as cluster
from helpers import deploy_pod_rules as pods
from helpers.deploy_manifests import Bundle, yaml
from helpers.deploy_rules import RULES

if TYPE_CHECKING:
    from helpers.deploy_manifests import Doc
    from helpers.deploy_rules import Rule

GONE = object()
JOB, GPU, SERVERS, ENVOY = "Job/decoder", "Deployment/decoder", "StatefulSet/logitd", "Deployment/logitd-envoy"
POD = "spec.template.spec"
NOTES = "spec.template.metadata.annotations"
SIDECAR, DECODER = f"{POD}.initContainers.0", f"{POD}.containers.0"
SERVER = DECODER
PRIVILEGES = f"{SIDECAR}.securityContext"
LISTENER = "static_resources.listeners.0.filter_chains.0.filters.0.typed_config"
ROUTE = f"{LISTENER}.route_config.virtual_hosts.0.routes.0.route"
CLUSTER = "static_resources.clusters.0"

# Rule, overlay, object, path in it, what is put there, and a part of what the rule must say.
BREAKS: list[tuple[Rule, str, str, str, Any, str]] = [
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{POD}.hostNetwork", True, "hostNetwork"),
    (pods.nothing_is_privileged, "sidecar-gpu", GPU, f"{POD}.shareProcessNamespace", True, "shareProcessNamespace"),
    (pods.nothing_is_privileged, "shared", SERVERS, f"{POD}.automountServiceAccountToken", GONE, "automount"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{POD}.volumes.0", {"name": "logitd", "hostPath": {}}, "host"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{POD}.securityContext.seccompProfile", GONE, "seccomp"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.runAsNonRoot", False, "runAsNonRoot"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.runAsUser", 0, "runAsUser"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.runAsGroup", GONE, "runAsGroup"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.privileged", True, "privileged must be False"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.allowPrivilegeEscalation", GONE, "Escalation"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.readOnlyRootFilesystem", False, "readOnlyRoot"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.capabilities.add", ["NET_RAW"], "capabilities"),
    (pods.nothing_is_privileged, "sidecar-cpu", JOB, f"{PRIVILEGES}.seccompProfile", {"type": "Unconfined"}, "pod's"),
    (pods.nothing_is_privileged, "shared", ENVOY, f"{SERVER}.securityContext", GONE, "logitd-envoy/envoy: runAsUser"),
    (pods.nothing_is_privileged, "shared", SERVERS, f"{SERVER}.ports.0.hostPort", 50051, "hostPort"),
    (pods.everything_is_limited, "sidecar-cpu", JOB, f"{SIDECAR}.resources.limits.cpu", GONE, "limits must have cpu"),
    (
        pods.everything_is_limited,
        "sidecar-cpu",
        JOB,
        f"{DECODER}.resources.requests.memory",
        GONE,
        "requests must have",
    ),
    (pods.everything_is_limited, "shared", SERVERS, f"{SERVER}.resources.requests.memory", "1Gi", "up to its limit"),
    (pods.everything_is_limited, "sidecar-cpu", JOB, f"{POD}.volumes.0.emptyDir.sizeLimit", GONE, "sizeLimit"),
    (pods.images_have_versions, "sidecar-cpu", JOB, f"{SIDECAR}.image", "logitd", "version"),
    (pods.images_have_versions, "shared", ENVOY, f"{SERVER}.image", "envoy:latest", "version"),
    (pods.settings_are_accepted, "sidecar-cpu", JOB, f"{SIDECAR}.args.0", "server", "serve"),
    (pods.settings_are_accepted, "sidecar-cpu", JOB, f"{SIDECAR}.args.7", "--linger=0", "linger"),
    (pods.settings_are_accepted, "sidecar-cpu", JOB, f"{SIDECAR}.args.7", "--linger-seconds=soon", "soon"),
    (pods.settings_are_accepted, "shared", "ConfigMap/logitd-settings", "data.LOGITD_LOG_LEVEL", "loud", "log_level"),
    (pods.settings_are_accepted, "shared", "ConfigMap/logitd-settings", "data.LOGITD_MAX_BATCH", "1", "MAX_BATCH "),
    (pods.settings_are_accepted, "shared", SERVERS, f"{POD}.enableServiceLinks", GONE, "enableServiceLinks"),
    (pods.ports_are_those_of_the_flags, "shared", SERVERS, f"{SERVER}.args.1", "--listen=0.0.0.0:50055", "ports"),
    (pods.ports_are_those_of_the_flags, "shared", SERVERS, f"{SERVER}.args.1", "--listen=127.0.0.1:50051", "outside"),
    (pods.ports_are_those_of_the_flags, "shared", SERVERS, f"{SERVER}.ports.2", GONE, "ports"),
    (pods.ports_are_those_of_the_flags, "shared", SERVERS, NOTES + ".prometheus~1io/port", "9090", "prometheus"),
    (pods.probes_ask_the_health_port, "sidecar-cpu", JOB, f"{SIDECAR}.startupProbe", GONE, "startupProbe"),
    (pods.probes_ask_the_health_port, "shared", SERVERS, f"{SERVER}.livenessProbe.grpc.port", 50051, "health port"),
    (pods.probes_ask_the_health_port, "shared", SERVERS, f"{SERVER}.readinessProbe.grpc.service", GONE, "ask for"),
    (pods.probes_ask_the_health_port, "shared", SERVERS, f"{SERVER}.livenessProbe.grpc.service", "x", "ask for ''"),
    (pods.probes_ask_the_health_port, "sidecar-cpu", JOB, f"{SIDECAR}.args.5", "--health-listen=", "health port"),
    (pods.probes_ask_the_health_port, "shared", ENVOY, f"{SERVER}.livenessProbe", GONE, "three probes"),
    (pods.paths_are_in_memory_volumes, "sidecar-cpu", JOB, f"{SIDECAR}.args.2", "--unix-socket=/tmp/s", "/tmp"),
    (pods.paths_are_in_memory_volumes, "sidecar-cpu", JOB, f"{SIDECAR}.args.4", "--shared-memory-dir=/run", "/run"),
    (pods.paths_are_in_memory_volumes, "sidecar-cpu", JOB, f"{SIDECAR}.volumeMounts.0.readOnly", True, "writable"),
    (pods.paths_are_in_memory_volumes, "sidecar-cpu", JOB, f"{POD}.volumes.0.emptyDir.medium", "", "memory"),
    (pods.grace_periods_add_up, "sidecar-cpu", JOB, f"{POD}.terminationGracePeriodSeconds", GONE, "at least 40"),
    (pods.grace_periods_add_up, "sidecar-cpu", JOB, f"{SIDECAR}.args.8", "--grace-seconds=20", "at least 55"),
    (pods.grace_periods_add_up, "sidecar-cpu", JOB, f"{NOTES}.{pods.DECODER_STOP}", GONE, "how long"),
    (pods.grace_periods_add_up, "shared", SERVERS, f"{SERVER}.args.4", "--linger-seconds=20", "at least 35"),
    (pods.grace_periods_add_up, "shared", ENVOY, f"{SERVER}.lifecycle.preStop.sleep.seconds", 20, "at least 25"),
    (pods.memory_adds_up, "sidecar-cpu", JOB, f"{SIDECAR}.resources.limits.memory", "1Gi", "memory limit"),
    (pods.memory_adds_up, "shared", "ConfigMap/logitd-settings", "data.LOGITD_MAX_STATE_BYTES", "4294967296", "memory"),
    (pods.memory_adds_up, "shared", SERVERS, f"{SERVER}.resources.limits.cpu", "1500m", "cpu limit"),
    (pods.memory_adds_up, "shared", SERVERS, f"{SERVER}.env.0.value", "4", "OMP_NUM_THREADS"),
    (pods.sidecars_serve_their_decoder, "sidecar-cpu", JOB, f"{SIDECAR}.restartPolicy", GONE, "restartPolicy"),
    (pods.sidecars_serve_their_decoder, "sidecar-cpu", JOB, f"{SIDECAR}.args.1", "--listen=0.0.0.0:1", "listen"),
    (pods.sidecars_serve_their_decoder, "sidecar-cpu", JOB, f"{DECODER}.args.0", "unix:/run/x", "argument"),
    (pods.sidecars_serve_their_decoder, "sidecar-cpu", JOB, f"{DECODER}.volumeMounts", GONE, "same path"),
    (
        pods.sidecars_serve_their_decoder,
        "sidecar-cpu",
        JOB,
        f"{POD}.volumes.0.emptyDir.sizeLimit",
        "256Mi",
        "max_region",
    ),
    (pods.sidecars_serve_their_decoder, "sidecar-cpu", JOB, f"{DECODER}.resources.limits.memory", "512Mi", "above"),
    (pods.sidecars_serve_their_decoder, "sidecar-cpu", JOB, f"{POD}.securityContext.fsGroup", GONE, "fsGroup"),
    (pods.sidecars_serve_their_decoder, "sidecar-cpu", JOB, f"{SIDECAR}.args.3", "--unix-socket-mode=0600", "fsGroup"),
    (pods.claims_are_shared, "sidecar-gpu", GPU, f"{SIDECAR}.resources.claims", GONE, "decoder/logitd: the claim gpu"),
    (pods.claims_are_shared, "sidecar-gpu", "ResourceClaimTemplate/one-gpu", "metadata.name", "two", "must be there"),
    (pods.claims_are_shared, "sidecar-gpu", GPU, f"{DECODER}.resources.limits.nvidia~1com/gpu", 1, "count"),
    (cluster.services_reach_pods, "shared", "Service/logitd", "spec.selector", {"app": "x"}, "Service logitd:"),
    (cluster.services_reach_pods, "shared", "Service/logitd", "spec.ports.0.targetPort", 50059, "50059"),
    (cluster.services_reach_pods, "shared", SERVERS, "spec.serviceName", "logitd", "headless"),
    (cluster.network_is_closed_but_for_need, "shared", "NetworkPolicy/logitd-nothing", "spec.policyTypes", [], "deny"),
    (cluster.network_is_closed_but_for_need, "shared", "NetworkPolicy/logitd-servers", "spec.ingress", GONE, "50051"),
    (
        *(cluster.network_is_closed_but_for_need, "shared", "NetworkPolicy/logitd-servers"),
        *("spec.ingress.0.from", [], "peers and ports"),
    ),
    (
        *(cluster.network_is_closed_but_for_need, "shared", "NetworkPolicy/logitd-envoy"),
        *("spec.egress.0.ports.0.port", 50052 + 9, "50061"),
    ),
    (
        *(cluster.network_is_closed_but_for_need, "sidecar-cpu", "NetworkPolicy/logitd-metrics"),
        *("spec.ingress.0.ports.0.port", 9090, "50053"),
    ),
    (cluster.budgets_allow_one, "shared", "PodDisruptionBudget/logitd", "spec.maxUnavailable", 0, "maxUnavailable"),
    (
        *(cluster.budgets_allow_one, "shared", "PodDisruptionBudget/logitd"),
        *("spec.selector.matchLabels", {"app": "x"}, "one budget"),
    ),
    (
        *(cluster.budgets_allow_one, "sidecar-gpu", "PodDisruptionBudget/decoder"),
        *("spec.selector.matchLabels", {"app": "x"}, "select a workload"),
    ),
    (cluster.envoy_knows_the_servers, "shared", SERVERS, "spec.replicas", 4, "endpoints"),
    (
        *(cluster.envoy_knows_the_servers, "shared", "Service/logitd-servers"),
        *("spec.publishNotReadyAddresses", GONE, "publishNotReadyAddresses"),
    ),
    (cluster.envoy_knows_the_servers, "shared", SERVERS, f"{SERVER}.args.4", "--linger-seconds=6", "linger"),
    (cluster.envoy_knows_the_servers, "shared", "envoy", f"{ROUTE}.hash_policy", [], "x-logitd-route"),
    (cluster.envoy_knows_the_servers, "shared", "envoy", f"{ROUTE}.timeout", "15s", "timeout"),
    (cluster.envoy_knows_the_servers, "shared", "envoy", f"{LISTENER}.stream_idle_timeout", "300s", "idle"),
    (cluster.envoy_knows_the_servers, "shared", "envoy", f"{CLUSTER}.lb_policy", "ROUND_ROBIN", "RING_HASH"),
    (
        *(cluster.envoy_knows_the_servers, "shared", "envoy"),
        *(f"{CLUSTER}.common_lb_config.consistent_hashing_lb_config", GONE, "hostname"),
    ),
    (
        *(cluster.envoy_knows_the_servers, "shared", "envoy"),
        *(f"{CLUSTER}.common_lb_config.healthy_panic_threshold", GONE, "panic"),
    ),
    (
        *(cluster.envoy_knows_the_servers, "shared", "envoy"),
        *(f"{CLUSTER}.health_checks.0.grpc_health_check", {}, "ask for logitd"),
    ),
    (
        *(cluster.envoy_knows_the_servers, "shared", "envoy"),
        *(f"{CLUSTER}.health_checks.0.no_traffic_interval", "60s", "noticed"),
    ),
    (
        *(cluster.envoy_knows_the_servers, "shared", "envoy"),
        *(f"{CLUSTER}.circuit_breakers.thresholds.0.max_requests", 1024, "circuit"),
    ),
    (
        *(cluster.envoy_knows_the_servers, "shared", "envoy"),
        *(f"{LISTENER}.http2_protocol_options.max_concurrent_streams", 100, "max_concurrent_streams"),
    ),
    (
        *(cluster.envoy_knows_the_servers, "shared", "envoy"),
        *(f"{LISTENER}.http2_protocol_options.connection_keepalive.interval", "10s", "pings"),
    ),
    (
        *(cluster.envoy_listens_where_its_pod_says, "shared", "envoy"),
        *("static_resources.listeners.0.address.socket_address.port_value", 50055, "ports"),
    ),
    (
        *(cluster.envoy_listens_where_its_pod_says, "shared", "envoy"),
        *("admin.address.socket_address.address", "0.0.0.0", "loopback"),
    ),
    (cluster.envoy_listens_where_its_pod_says, "shared", ENVOY, f"{SERVER}.readinessProbe.httpGet.path", "/", "probes"),
]


@pytest.mark.parametrize(
    ("rule", "overlay", "owner", "path", "value", "fault"),
    BREAKS,
    ids=[f"{rule.__name__}-{path.rpartition('.')[2]}-{number}" for number, (rule, _, _, path, *_) in enumerate(BREAKS)],
)
def test_rule_finds(rule: Rule, overlay: str, owner: str, path: str, value: Any, fault: str) -> None:
    bundle = Bundle.of(overlay)
    if owner == "envoy":
        break_envoy(bundle, path, value)
    else:
        break_at(find(bundle, owner), path, value)
    assert any(fault in each for each in rule(bundle)), list(rule(bundle))


def test_every_rule_is_broken() -> None:
    assert {rule for rule, *_ in BREAKS} == set(RULES)


def find(bundle: Bundle, owner: str) -> Doc:
    # Names of generated maps end in a hash of their contents.
    kind, _, name = owner.partition("/")
    return next(
        doc
        for doc in bundle.all(kind)
        if doc["metadata"]["name"] == name or (kind == "ConfigMap" and doc["metadata"]["name"].startswith(name))
    )


def break_at(doc: Any, path: str, value: Any) -> None:
    """Put the value at a dotted path, in which ~1 stands for a dot."""
    *parents, last = [int(part) if part.isdigit() else part.replace("~1", ".") for part in path.split(".")]
    for part in parents:
        doc = doc[part]
    if value is GONE:
        del doc[last]
    else:
        doc[last] = value


def break_envoy(bundle: Bundle, path: str, value: Any) -> None:
    data = find(bundle, "ConfigMap/logitd-envoy")["data"]
    config = yaml.safe_load(data["envoy.yaml"])
    break_at(config, path, value)
    data["envoy.yaml"] = yaml.safe_dump(config)
