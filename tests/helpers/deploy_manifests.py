"""Rendered manifests as the cluster would see them: pods with their containers, settings, mounts and ports."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from helpers.deploy_tools import need_module, render
from logitd.service.config import ConfigError, ServerConfig, add_arguments, load_config

if TYPE_CHECKING:
    from collections.abc import Iterator

yaml = need_module("yaml")

Doc = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9}


def read_quantity(text: str | int | float) -> float:
    """The number that a Kubernetes quantity writes: 512Mi, 0.5, 500m."""
    text = str(text)
    for suffix, factor in _UNITS.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


@dataclass(frozen=True)
class Container:
    """A container of a pod; `is_sidecar` for init containers that go on."""

    pod: Pod
    spec: Doc
    is_init: bool

    @property
    def name(self) -> str:
        return f"{self.pod.name}/{self.spec['name']}"

    @property
    def is_server(self) -> bool:
        return str(self.spec["image"]).rpartition("/")[2].split(":")[0] == "logitd"

    @property
    def is_sidecar(self) -> bool:
        return self.is_init and self.spec.get("restartPolicy") == "Always"

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in self.spec.get("envFrom", ()):
            found |= self.pod.bundle.named("ConfigMap", source["configMapRef"]["name"])["data"]
        return found | {entry["name"]: entry["value"] for entry in self.spec.get("env", ())}

    @property
    def probes(self) -> dict[str, Doc]:
        return {
            name: self.spec[name] for name in ("startupProbe", "readinessProbe", "livenessProbe") if name in self.spec
        }

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.spec.get("ports", ())}

    def config(self) -> ServerConfig:
        """What the server makes of its flags and variables; raises `ConfigError` as it would."""
        command, *flags = self.spec["args"]
        if command != "serve":
            raise ConfigError(f"the first argument must be serve, got {command!r}")
        parser = _Parser(add_help=False, allow_abbrev=False)  # a later setting could make a short form ambiguous
        add_arguments(parser)
        return load_config(parser.parse_args(flags), self.environment)

    def volume_at(self, path: str) -> Doc | None:
        """The volume in which a path lies, and which can be written."""
        for mount in self.spec.get("volumeMounts", ()):
            if f"{path}/".startswith(f"{mount['mountPath'].rstrip('/')}/") and not mount.get("readOnly"):
                volumes: list[Doc] = self.pod.spec["volumes"]
                return next(volume for volume in volumes if volume["name"] == mount["name"])
        return None

    def limit(self, resource: str) -> float:
        return read_quantity(self.spec["resources"]["limits"][resource])


@dataclass(frozen=True)
class Pod:
    """The pods that a workload makes."""

    bundle: Bundle
    workload: Doc

    @property
    def name(self) -> str:
        return str(self.workload["metadata"]["name"])

    @property
    def spec(self) -> Doc:
        return dict(self.workload["spec"]["template"]["spec"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.workload["spec"]["template"]["metadata"]["labels"])

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.workload["spec"]["template"]["metadata"].get("annotations", {}))

    @property
    def containers(self) -> list[Container]:
        init = [Container(self, spec, True) for spec in self.spec.get("initContainers", ())]
        return [*init, *(Container(self, spec, False) for spec in self.spec["containers"])]

    def is_selected(self, selector: Doc) -> bool:
        """Whether a selector means this pod; an empty one means every pod."""
        wanted: dict[str, str] = selector.get("matchLabels", {})
        return wanted.items() <= self.labels.items()


@dataclass(frozen=True)
class Bundle:
    """All documents of a rendered overlay."""

    docs: list[Doc] = field(default_factory=list)

    @classmethod
    def of(cls, overlay: str) -> Bundle:
        return cls(list(yaml.safe_load_all(render(overlay))))

    def all(self, *kinds: str) -> Iterator[Doc]:
        return (doc for doc in self.docs if doc["kind"] in kinds)

    def named(self, kind: str, name: str) -> Doc:
        return next(doc for doc in self.all(kind) if doc["metadata"]["name"] == name)

    @property
    def pods(self) -> list[Pod]:
        return [Pod(self, doc) for doc in self.all(*WORKLOADS)]

    @property
    def containers(self) -> list[Container]:
        return [container for pod in self.pods for container in pod.containers]

    @property
    def servers(self) -> list[Container]:
        return [container for container in self.containers if container.is_server]

    @property
    def envoy_config(self) -> Doc | None:
        """The configuration of the proxy; None without one."""
        for doc in self.all("ConfigMap"):
            if "envoy.yaml" in doc["data"]:
                return dict(yaml.safe_load(doc["data"]["envoy.yaml"]))
        return None
