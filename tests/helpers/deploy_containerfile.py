"""A container file carried out without an engine: its RUN lines as they stand, in a sandbox for each stage."""

from __future__ import annotations

import json
import re
import shutil
import string
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.deploy_sandbox import Mount, Sandbox
from helpers.deploy_tools import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Folders of an image in which a stage may write; all else is this machine's, and read-only.
_WRITABLE = ("src", "opt", "app", "tmp", "run")


@dataclass(frozen=True)
class Instruction:
    """A line of a container file, continuations joined."""

    name: str
    text: str


@dataclass
class Stage:
    """What follows a FROM."""

    instructions: list[Instruction] = field(default_factory=list)

    def last(self, name: str) -> str:
        """The text of the last instruction of that name."""
        return [each.text for each in self.instructions if each.name == name][-1]

    def all(self, name: str) -> list[str]:
        """The texts of the instructions of that name."""
        return [each.text for each in self.instructions if each.name == name]


def read_stages(path: Path) -> list[Stage]:
    """The stages, without what comes before the first."""
    stages: list[Stage] = []
    for name, text in _instructions(path.read_text(encoding="utf-8")):
        if name == "FROM":
            stages.append(Stage())
        elif stages:
            stages[-1].instructions.append(Instruction(name, text))
    return stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    without_comments = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for line in without_comments.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


@dataclass(frozen=True)
class Image:
    """A built image: the folders that its stages left, and how it is to be run."""

    folder: Path
    stage: Stage

    @property
    def mounts(self) -> list[Mount]:
        base = Mount(Path(sys.base_prefix), sys.base_prefix)
        return [base, *(Mount(self.folder / name, f"/{name}") for name in ("opt", "app"))]

    @property
    def environment(self) -> dict[str, str]:
        settings = [setting for line in self.stage.all("ENV") for setting in line.split()]
        found = dict(setting.split("=", 1) for setting in settings)
        return found | {"PATH": found.get("PATH", "$PATH").replace("$PATH", _base_path())}

    @property
    def workdir(self) -> str:
        return (self.stage.all("WORKDIR") or ["/"])[-1]

    @property
    def user(self) -> tuple[int, int]:
        uid, _, gid = self.stage.last("USER").partition(":")
        return int(uid), int(gid)

    @property
    def entrypoint(self) -> list[str]:
        return list(json.loads(self.stage.last("ENTRYPOINT")))

    @property
    def command(self) -> list[str]:
        return list(json.loads(self.stage.last("CMD")))


class BuildError(Exception):
    """A RUN line failed; with what it wrote."""


def build(
    path: Path, folder: Path, arguments: Mapping[str, str], *, context: Path = ROOT, mounts: Sequence[Mount] = ()
) -> Image:
    """Carry out all stages; `arguments` are the build arguments, `mounts` what the machine adds."""
    image = folder
    for number, stage in enumerate(read_stages(path)):
        previous, image = image, folder / f"stage-{number}"
        for name in (*_WRITABLE, "root"):
            (image / name).mkdir(parents=True)
        _Builder(image, {"": context, "build": previous}, arguments, mounts).carry_out(stage)
    return Image(image, stage)


class _Builder:
    def __init__(
        self, image: Path, origins: Mapping[str, Path], arguments: Mapping[str, str], mounts: Sequence[Mount]
    ) -> None:
        self._image = image
        self._origins = origins
        self._given = arguments
        self._variables: dict[str, str] = {}
        self._folder = "/"
        writable = [Mount(image / name, f"/{name}", True) for name in _WRITABLE]
        self._mounts = [Mount(Path(sys.base_prefix), sys.base_prefix), *writable, *mounts]

    def carry_out(self, stage: Stage) -> None:
        for instruction in stage.instructions:
            match instruction.name:
                case "ARG":
                    name, _, default = instruction.text.partition("=")
                    self._variables[name] = self._given.get(name, default)
                case "WORKDIR":
                    self._folder = instruction.text
                    (self._image / self._folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(string.Template(instruction.text).substitute(self._variables).split())
                case "RUN":
                    self._run(instruction.text)

    def _copy(self, words: list[str]) -> None:
        stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        *sources, target = words
        place = self._image / (Path(self._folder) / target).relative_to("/")
        for source in sources:
            found = self._origins[stage] / source.lstrip("/")
            if found.is_dir():
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(found, place)

    def _run(self, line: str) -> None:
        # No settings of this machine's pip: what the build needs comes from its arguments.
        environment = {"PATH": _base_path(), "HOME": "/tmp", "PIP_CONFIG_FILE": "/dev/null", **self._variables}
        sandbox = Sandbox(self._image / "root", self._mounts, None, environment, self._folder)
        log = self._image / "log"
        if sandbox.run(["sh", "-c", line], log):
            raise BuildError(f"{line}\n{log.read_text()}")


def _base_path() -> str:
    return f"{sys.base_prefix}/bin:/usr/bin:/bin"
