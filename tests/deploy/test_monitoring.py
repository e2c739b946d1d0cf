"""The dashboard and the alerts ask for what the server really exports."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from helpers.deploy_decoder import decode
from helpers.deploy_manifests import Bundle, yaml
from helpers.deploy_tools import DEPLOY, kustomize, need_module
from helpers.live_server import serving
from logitd.client import Client
from logitd.service.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

promql = need_module("promql_parser")

MONITORING = DEPLOY / "components" / "monitoring"
# What Prometheus adds to each target of a cluster.
TARGET_LABELS = {"namespace", "pod", "container", "instance", "job"}
# Labels whose values are known in advance; codes appear as they happen.
FIXED_LABELS = {"name", "method", "grpc_method", "grpc_type", "grpc_service"}

Exported = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Each name of a sample that a working server gives, with the values of its labels."""
    socket = tmp_path_factory.mktemp("monitored") / "s"
    config = ServerConfig(listen="", unix_socket=str(socket), metrics_listen="127.0.0.1:0", linger_seconds=0)
    found: Exported = {}
    with serving(config) as live, Client(live.address) as client:
        decode(client, seed=0, steps=2)
        with urllib.request.urlopen(f"http://{live.server.endpoints.metrics_address}/metrics", timeout=10) as page:
            text = page.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def alerts() -> dict[str, str]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def dashboard() -> dict[str, Any]:
    return dict(json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8")))


def panels() -> dict[str, str]:
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    }


def selectors(expression: str) -> list[Any]:
    """The parts of an expression that name a metric. Raises on an expression that Prometheus would refuse."""
    found = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        elif isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)

    promql.walk(promql.parse(expression), visit)
    return found


def faults(expression: str, exported: Exported) -> Iterator[str]:
    known = set(TARGET_LABELS)
    for selector in selectors(expression):
        if selector.name not in exported:
            yield f"{selector.name} is not exported"
            continue
        labels = exported[selector.name]
        known |= labels.keys()
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels.keys() | TARGET_LABELS:
                yield f"{selector.name} has no label {matcher.name}"
            elif matcher.name in FIXED_LABELS and matcher.value not in labels[matcher.name]:
                yield f"{selector.name} has no {matcher.name} {matcher.value}"
            elif matcher.name == "grpc_code" and not set(matcher.value.split("|")) <= set(grpc.StatusCode.__members__):
                yield f"{matcher.value} names no codes"
    for names in re.findall(r"\b(?:by|ignoring|on) \(([^)]*)\)", expression):
        for name in names.split(", "):
            if name not in known:
                yield f"no metric of it has a label {name}"


@pytest.mark.parametrize("name", alerts())
def test_alert_asks_for_what_there_is(name: str, exported: Exported) -> None:
    assert list(faults(alerts()[name], exported)) == []


@pytest.mark.parametrize("name", panels())
def test_panel_asks_for_what_there_is(name: str, exported: Exported) -> None:
    assert list(faults(panels()[name], exported)) == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(logitd_batch)", "logitd_batch is not"),
        ('rate(logitd_steps_total{rpc="Apply"}[5m])', "no label rpc"),
        ('rate(logitd_steps_total{method="Step"}[5m])', "no method Step"),
        ('logitd_limit{name="max_batch"}', "no name max_batch"),
        ('rate(grpc_server_handled_total{grpc_code=~"OK|FAULT"}[5m])', "names no codes"),
        ("sum by (batch) (logitd_rows)", "a label batch"),
    ],
)
def test_what_is_not_there_is_found(expression: str, fault: str, exported: Exported) -> None:
    assert any(fault in each for each in faults(expression, exported))


def test_expressions_that_do_not_parse_are_found() -> None:
    with pytest.raises(ValueError, match="unexpected end"):
        selectors("rate(logitd_rows)[5m")


def test_dashboard_shows_every_metric_of_our_own(exported: Exported) -> None:
    shown = {selector.name for expression in panels().values() for selector in selectors(expression)}
    ours = {
        name for name in exported if name.startswith("logitd_") and not name.endswith(("_bucket", "_count", "_created"))
    }
    assert ours <= shown


def test_dashboard_has_one_place_for_each_panel() -> None:
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in dashboard()["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_variables_ask_for_what_there_is(exported: Exported) -> None:
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["definition"])
            assert asked is not None
            assert asked[1] in exported
            assert asked[2] in TARGET_LABELS


def test_component_puts_both_into_maps(tmp_path: Path) -> None:
    deploy = os.path.relpath(DEPLOY, tmp_path.resolve())  # kustomize wants relative places
    places = {"resources": [f"{deploy}/overlays/shared"], "components": [f"{deploy}/components/monitoring"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(places))
    bundle = Bundle(list(yaml.safe_load_all(kustomize(tmp_path))))
    assert json.loads(bundle.named("ConfigMap", "logitd-dashboard")["data"]["logitd.json"]) == dashboard()
    assert list(yaml.safe_load(bundle.named("ConfigMap", "logitd-alerts")["data"]["logitd.yaml"])) == ["groups"]
