"""The client of the last release, as its users have it, against this server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from compat.conversation import FLAGS, assert_same, converse

import logitd.client
from helpers.faults import FaultyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

RELEASE_PYTHON = os.environ.get("LOGITD_RELEASE_PYTHON", "")
if not RELEASE_PYTHON:
    pytest.skip("LOGITD_RELEASE_PYTHON names no Python with the last release", allow_module_level=True)
pytestmark = pytest.mark.timeout(300)

[RELEASE] = Path(__file__).parents[1].joinpath("releases").iterdir()
WALKS = sorted(json.loads((RELEASE / "answers.json").read_text(encoding="utf-8")))
# Scores go through log_softmax, whose last bits depend on the processor; so does the checkpoint, which carries them.
TOLERANCE = 1e-5
# Texts for people may be better today, and a checkpoint is the server's own.
MAY_DIFFER = frozenset({"message", "description", "checkpoint"})
# What a server tells of itself grows.
GROWS = {"capabilities"}


@pytest.fixture(scope="module", params=["sync", "asyncio"])
def surface(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def said(surface: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What both clients say of the same server, one after the other."""
    memory_dir = tmp_path_factory.mktemp("memory")
    with FaultyServer(tmp_path_factory.mktemp("compat"), *FLAGS, "--shared-memory-dir", str(memory_dir)) as server:
        pythons = {"release": RELEASE_PYTHON, "current": sys.executable}
        yield {name: converse(python, server, memory_dir, surface) for name, python in pythons.items()}


def test_each_side_is_who_it_should_be(said: dict[str, Any]) -> None:
    assert said["release"]["client"]["version"] == RELEASE.name
    assert said["current"]["client"]["file"] == logitd.client.__file__ != said["release"]["client"]["file"]


@pytest.mark.parametrize("walk", WALKS)
def test_the_client_of_the_release_finds_what_the_current_one_finds(said: dict[str, Any], walk: str) -> None:
    assert said["release"]["answers"].keys() == said["current"]["answers"].keys() == set(WALKS)
    assert_same(said["current"]["answers"][walk], said["release"]["answers"][walk], walk)


@pytest.mark.parametrize("walk", sorted(set(WALKS) - GROWS))
def test_it_finds_what_it_found_with_its_own_server(said: dict[str, Any], walk: str) -> None:
    recorded = json.loads((RELEASE / "answers.json").read_text(encoding="utf-8"))[walk]
    tolerance = TOLERANCE if "beam" in walk or walk in {"undisturbed", "restarted", "retries"} else 0.0
    assert_same(said["release"]["answers"][walk], recorded, walk, tolerance=tolerance, ignored=MAY_DIFFER)


def test_a_server_that_dies_does_not_show(said: dict[str, Any]) -> None:
    assert_same(said["release"]["answers"]["restarted"], said["release"]["answers"]["undisturbed"])
