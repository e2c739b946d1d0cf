"""All rules, in the order in which a person would look."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from helpers import deploy_cluster_rules as cluster
from helpers import deploy_pod_rules as pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helpers.deploy_manifests import Bundle

Rule: TypeAlias = "Callable[[Bundle], Iterator[str]]"

RULES: tuple[Rule, ...] = (
    pods.nothing_is_privileged,
    pods.everything_is_limited,
    pods.images_have_versions,
    pods.settings_are_accepted,
    pods.ports_are_those_of_the_flags,
    pods.probes_ask_the_health_port,
    pods.paths_are_in_memory_volumes,
    pods.grace_periods_add_up,
    pods.memory_adds_up,
    pods.sidecars_serve_their_decoder,
    pods.claims_are_shared,
    cluster.services_reach_pods,
    cluster.network_is_closed_but_for_need,
    cluster.budgets_allow_one,
    cluster.envoy_knows_the_servers,
    cluster.envoy_listens_where_its_pod_says,
)
