"""A few files of an engine, loaded without the engine: every other module that they import is an empty stand-in."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tarfile
import types
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FETCHED = Path(__file__).parents[2] / "build" / "parity"


def find_sources(engine: str) -> list[Path]:
    """Where an engine's code lies: what was fetched, and the paths that LOGITD_<ENGINE>_SOURCES lists."""
    listed = os.environ.get(f"LOGITD_{engine.upper()}_SOURCES", "")
    named = [Path(name) for name in listed.split(os.pathsep) if name]
    return named + sorted([*FETCHED.glob(f"{engine}-*.whl"), *FETCHED.glob(f"{engine}-*.tar.gz")])


def version_of(source: Path) -> str:
    """The version in the name of a wheel or a source distribution."""
    return source.name.removesuffix(".tar.gz").split("-")[1]


class EngineFiles:
    """Files of one version of an engine."""

    def __init__(
        self, source: Path, folder: Path, files: Sequence[str], names: Mapping[str, Any], others: Sequence[str] = ()
    ) -> None:
        """Unpack them.

        Parameters
        ----------
        source
            A wheel, a source distribution, or a folder.
        folder
            Receives the files.
        names
            What a stand-in has under a name, whichever module it stands in for; any other name is an empty class there.
        others
            Further packages that get stand-ins.
        """
        for name in files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_read(source, name))
        self._packages = {*others, *(name.partition("/")[0] for name in files)}
        self._finder = _Finder(folder, self._packages, names)
        self._modules: dict[str, types.ModuleType] = {}

    @contextmanager
    def importable(self) -> Iterator[None]:
        """While it lasts, the files are what is imported; also by their own functions, when these are called."""
        hidden = self._remove_modules()
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self._finder)
        try:
            yield
        finally:
            sys.meta_path.remove(self._finder)
            self._modules = self._remove_modules()
            sys.modules.update(hidden)

    def _remove_modules(self) -> dict[str, types.ModuleType]:
        found = [name for name in sys.modules if name.partition(".")[0] in self._packages]
        return {name: sys.modules.pop(name) for name in found}


def _read(source: Path, name: str) -> bytes:
    if source.is_dir():
        return (source / name).read_bytes()
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            return wheel.read(name)
    with tarfile.open(source) as archive:
        member = archive.extractfile(f"{source.name.removesuffix('.tar.gz')}/{name}")
        assert member is not None, name
        return member.read()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the unpacked files, and a stand-in for every other module of their packages."""

    def __init__(self, folder: Path, packages: set[str], names: Mapping[str, Any]) -> None:
        self._folder, self._packages, self._names = folder, packages, names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        place = self._folder / name.replace(".", "/")
        if place.with_suffix(".py").exists():
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        if (place / "__init__.py").exists():
            return importlib.util.spec_from_file_location(name, place / "__init__.py")
        return importlib.machinery.ModuleSpec(name, _StandInLoader(self._names), is_package=True)


class _StandInLoader(importlib.abc.Loader):
    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name, self._names)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _StandIn(types.ModuleType):
    def __init__(self, name: str, names: Mapping[str, Any]) -> None:
        super().__init__(name)
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._names[name] if name in self._names else type(name, (), {})
