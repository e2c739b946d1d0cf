"""Which part may know which: the arrows of the layout, asserted over every import of every file."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

FORBIDDEN = {
    "sampling": {
        *("grpc", "grpc_health", "grpc_reflection", "grpc_status", "google"),
        *("logitd.service", "logitd.client", "logitd.v1"),
        *("asyncio", "datetime", "socket", "time"),
    },
    "service": {"logitd.client"},
    "client": {"torch", "transformers", "gguf", "logitd.service", "logitd.sampling"},
}
# Heavy and optional: the demo may import them inside a function, so that nobody else pays for them.
LAZY_IN_DEMO = {"torch", "transformers", "gguf"}

SOURCES = [path for folder in FORBIDDEN for path in sorted((ROOT / folder).rglob("*.py"))]


def imported_names(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Each import statement with every dotted name it may load: `from a import b` yields `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node, module
            yield from ((node, f"{module}.{alias.name}") for alias in node.names)


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imports_inside_functions(tree: ast.AST) -> set[ast.stmt]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node for function in functions for node, _ in imported_names(function)}


def violations(path: Path, source: str) -> list[str]:
    """The imports in `source`, read as the file `path` (relative to the root), that its folder forbids."""
    tree = ast.parse(source)
    in_demo = path.parts[:2] == ("client", "demo")
    lazy = imports_inside_functions(tree) if in_demo else set()
    return [
        f"{path}:{node.lineno} imports {name}"
        for node, name in imported_names(tree)
        if within(name, FORBIDDEN[path.parts[0]]) and not (node in lazy and within(name, LAZY_IN_DEMO))
    ]


def loaded_by_importing(folder: str) -> set[str]:
    """What sys.modules holds after a fresh interpreter imported every module of `folder` but `__main__`."""
    files = (path for path in SOURCES if path.is_relative_to(ROOT / folder) and path.stem != "__main__")
    parts = (("logitd", *path.relative_to(ROOT).with_suffix("").parts) for path in files)
    names = [".".join(part for part in module if part != "__init__") for module in parts]
    script = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(json.dumps(list(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    assert violations(path.relative_to(ROOT), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_are_absolute(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    assert [node.lineno for node in nodes if isinstance(node, ast.ImportFrom) and node.level] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("sampling/a.py", "import time"),
        ("sampling/a.py", "from grpc import aio"),
        ("sampling/beam/a.py", "def f():\n    from google.protobuf import message"),
        ("sampling/a.py", "from logitd import v1"),
        ("service/a.py", "from logitd.client.errors import LogitdError"),
        ("client/a.py", "def f():\n    import torch"),
        ("client/a.py", "from logitd import service"),
        ("client/demo/a.py", "import transformers"),
        ("client/demo/a.py", "def f():\n    import logitd.sampling"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    assert violations(Path(path), source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("sampling/a.py", "import torch\nfrom logitd.sampling.beam import rules"),
        ("service/a.py", "import time\nfrom logitd import sampling, v1"),
        ("client/a.py", "import asyncio\nfrom logitd.v1 import service_pb2"),
        ("client/demo/a.py", "def f():\n    import torch\n    from transformers import AutoTokenizer"),
    ],
)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    assert violations(Path(path), source) == []


def test_importing_the_client_loads_nothing_heavy() -> None:
    loaded = loaded_by_importing("client")
    assert "logitd.client" in loaded
    assert sorted(name for name in loaded if within(name, FORBIDDEN["client"])) == []


def test_importing_sampling_loads_no_transport() -> None:
    transport = {"grpc", "google.protobuf", "logitd.service", "logitd.client", "logitd.v1"}
    loaded = loaded_by_importing("sampling")
    assert "logitd.sampling" in loaded
    assert sorted(name for name in loaded if within(name, transport)) == []
