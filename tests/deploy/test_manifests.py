"""Every overlay is valid for the Kubernetes versions that it is for, and keeps the rules that schemas miss."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from helpers.deploy_manifests import Bundle, yaml
from helpers.deploy_pod_rules import DECODER_STOP
from helpers.deploy_rules import RULES
from helpers.deploy_tools import DEPLOY, OVERLAYS, kustomize, need_module

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.deploy_rules import Rule

kubernetes_validate = need_module("kubernetes_validate")

# The oldest that the overlay is for, one in between, the newest with a schema. Sidecars and the sleep before a stop
# need 1.30, claims in their present form 1.34.
VERSIONS = {
    "sidecar-cpu": ("1.30", "1.34", "1.37"),
    "sidecar-gpu": ("1.34", "1.35", "1.37"),
    "shared": ("1.30", "1.34", "1.37"),
}


def test_every_overlay_is_tested() -> None:
    assert sorted(os.listdir(DEPLOY / "overlays")) == sorted(OVERLAYS) == sorted(VERSIONS)


@pytest.mark.parametrize(("overlay", "version"), [(name, each) for name in OVERLAYS for each in VERSIONS[name]])
def test_schemas_accept(overlay: str, version: str) -> None:
    for doc in Bundle.of(overlay).docs:
        kubernetes_validate.validate(doc, version, strict=True)


def test_component_joins_a_decoder_of_ones_own(tmp_path: Path) -> None:
    """As the README says, with a decoder that knows nothing else of logitd."""
    deploy = os.path.relpath(DEPLOY, tmp_path.resolve())  # kustomize wants relative places
    places = {"resources": ["decoder.yaml", f"{deploy}/base"], "components": [f"{deploy}/components/sidecar"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(places))
    (decoder,) = (doc for doc in Bundle.of("sidecar-gpu").all("Deployment"))
    spec = decoder["spec"]["template"]["spec"]
    mine = {name: spec["containers"][0][name] for name in ("name", "env", "securityContext", "volumeMounts")}
    mine |= {"image": "mine:1", "resources": {kind: {"cpu": "1", "memory": "1Gi"} for kind in ("requests", "limits")}}
    labels, notes = {"app": "mine"}, {DECODER_STOP: "35"}
    template = {"metadata": {"labels": labels, "annotations": notes}, "spec": {"containers": [mine]}}
    workload = decoder | {
        "metadata": {"name": "mine", "labels": {"logitd-sidecar": "true"}},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    (tmp_path / "decoder.yaml").write_text(yaml.safe_dump(workload))
    bundle = Bundle(list(yaml.safe_load_all(kustomize(tmp_path))))
    for doc in bundle.docs:
        kubernetes_validate.validate(doc, "1.30", strict=True)
    assert [fault for rule in RULES for fault in rule(bundle)] == []
    assert len(bundle.servers) == 1


def test_schemas_refuse_what_is_misspelt() -> None:
    bundle = Bundle.of("sidecar-cpu")
    bundle.pods[0].workload["spec"]["template"]["spec"]["initContainers"][0]["restartPolicies"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(bundle.pods[0].workload, "1.34", strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rules_hold(overlay: str, rule: Rule) -> None:
    assert list(rule(Bundle.of(overlay))) == []
