"""What an install brings: every file of every package, no foreign name, and bounds that CI really runs."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]


def package_folders() -> dict[str, Path]:
    """Every package in the source tree by its installed name."""
    return {
        ".".join((package, *init.parent.relative_to(ROOT / folder).parts)): init.parent
        for package, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }


def installed_files() -> set[PurePosixPath]:
    # A build leaves metadata without a record in the source tree, where `python -m pytest` would find it first.
    found = importlib.metadata.distributions(name="logitd")
    distribution = next(each for each in found if each.read_text("RECORD") is not None)
    if "editable" in (distribution.read_text("direct_url.json") or ""):
        pytest.skip("an editable install has no files of its own")
    return {PurePosixPath(file) for file in distribution.files or () if file.suffix != ".pyc"}


def exact_pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_pyproject_lists_every_package() -> None:
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(package_folders())


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_every_part_ships_its_types(folder: str) -> None:
    assert (ROOT / folder / "py.typed").is_file()


def test_an_install_holds_every_source_file() -> None:
    suffixes = {".py", ".pyi", ".proto", ".txt", ".typed"}
    expected = {
        PurePosixPath(*name.split("."), file.name)
        for name, folder in package_folders().items()
        for file in folder.iterdir()
        if file.suffix in suffixes
    }
    assert {file for file in installed_files() if file.parts[0] == "logitd"} == expected


def test_an_install_claims_no_other_name() -> None:
    version = PYPROJECT["project"]["version"]
    tops = {file.parts[0] for file in installed_files() if file.parts[0] != ".."}
    assert tops == {"logitd", f"logitd-{version}.dist-info"}


def test_lower_bounds_are_the_versions_that_compat_installs() -> None:
    pins = exact_pins(ROOT / "tests" / "constraints-lowest.txt")
    bounds = dict(re.split(">=|,", line)[:2] for line in PYPROJECT["project"]["dependencies"])
    assert {name: pins[name] for name in bounds} == bounds


def test_shared_tools_have_one_version() -> None:
    pins = exact_pins(ROOT / "constraints.txt")
    lowest = exact_pins(ROOT / "tests" / "constraints-lowest.txt")
    runtime = {re.split(r"[<>=]", line)[0] for line in PYPROJECT["project"]["dependencies"]}
    tools = lowest.keys() - runtime
    assert {name: pins[name] for name in tools} == {name: lowest[name] for name in tools}
