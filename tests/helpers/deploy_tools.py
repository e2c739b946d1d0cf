"""The tools of the deployment's tests: where one is absent a test is skipped, but `make deploy-check` skips nothing."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("sidecar-cpu", "sidecar-gpu", "shared")
MUST_RUN = os.environ.get("LOGITD_DEPLOY_CHECK") == "1"


def need_module(name: str) -> ModuleType:
    """A module, or a skip of the test module that imports this."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        _refuse(f"needs the Python module {name}")


def need_tool(name: str) -> Path:
    """A program of this environment, or else of the machine; or a skip."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    return Path(found) if found else _refuse(f"needs the program {name}")


def need_file(path: Path) -> None:
    """A file that another target of the Makefile fetches; or a skip."""
    if not path.exists():
        _refuse(f"needs {path.relative_to(ROOT)}")


def need_namespaces() -> None:
    """Root, and a kernel that lets it make namespaces; or a skip."""
    unshare, _ = need_tool("unshare"), need_tool("setpriv")
    command = [str(unshare), "--mount", "--pid", "--fork", "true"]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        _refuse("needs root and namespaces")


def need_minutes() -> None:
    """A skip of what takes minutes, unless the run is for that."""
    if not MUST_RUN:
        pytest.skip("takes minutes: make deploy-check runs it")


@cache
def render(overlay: str) -> str:
    """The YAML of an overlay, as kustomize writes it."""
    return kustomize(DEPLOY / "overlays" / overlay)


def kustomize(folder: Path) -> str:
    """What a folder with a kustomization gives."""
    command = [str(need_tool("kubectl")), "kustomize", str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _refuse(reason: str) -> NoReturn:
    if MUST_RUN:
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)
