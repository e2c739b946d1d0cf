"""What the samples are built with. They are built where LOGITD_INTEROP is set, and then no tool may be absent."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
REPOSITORY = ROOT.parents[1]
PROTOS = REPOSITORY / "proto"
VECTORS = ROOT / "vectors" / "vectors.tsv"

_WANTED = "LOGITD_INTEROP"


def needs(*programs: str, packages: tuple[str, ...] = (), files: tuple[Path, ...] = ()) -> None:
    """Skips where samples are not wanted; fails unless the programs, packages of pkg-config, and files are there."""
    if not os.environ.get(_WANTED):
        pytest.skip("the samples are built and run by `make interop`")
    missing = [name for name in programs if shutil.which(name) is None]
    if not missing:
        missing += [name for name in packages if subprocess.run(["pkg-config", "--exists", name]).returncode]
    missing += [str(path) for path in files if not path.exists()]
    if missing:
        pytest.fail(f"not here: {', '.join(missing)}; `make interop` installs them")


def build_folder(language: str) -> Path:
    """Where a language's programs are built; it stays from run to run."""
    folder = REPOSITORY / "build" / "interop" / language
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(*command: str, cwd: Path | None = None, stdin: str = "") -> str:
    """What the command prints; all that it said where it fails."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, input=stdin)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout
