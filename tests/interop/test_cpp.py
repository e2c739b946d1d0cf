"""The C++ sample against a real server: each message and each answer is the golden one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from interop.conversations import assert_golden, beam_lines, greedy_lines
from interop.toolchains import ROOT, build_folder, needs, run

if TYPE_CHECKING:
    from pathlib import Path

    from interop.recorder import Recording

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def build() -> Path:
    """The folder with the programs, made from the sources as they are now."""
    needs("cmake", "g++", "pkg-config", "protoc", "grpc_cpp_plugin", packages=("grpc++", "protobuf"))
    folder = build_folder("cpp")
    run("cmake", "-S", str(ROOT / "cpp"), "-B", str(folder))
    run("cmake", "--build", str(folder), "--parallel", "2")
    return folder


def test_the_golden_vectors_hold_without_a_server(build: Path) -> None:
    run("ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error")


def test_every_form_and_the_beams_are_golden(build: Path, recorded: Recording, memory_dir: Path) -> None:
    output = run(str(build / "decoder"), recorded.target, str(memory_dir))
    forms = ["dense", "sparse", "edits", "in_place", "in_place"]
    titles = ["dense", "sparse", "edits", "memory file", "named file"]
    assert output.splitlines() == [line for title in titles for line in greedy_lines(title)] + beam_lines()
    batches = recorded.batches()
    assert len(batches) == len(forms) + 1
    for batch, scenario in zip(batches, [*forms, "beams"], strict=True):
        assert_golden(batch, scenario)
    assert [exchange.rpc for exchange in recorded.without_batch()] == [
        "RegisterSharedMemory",
        "UnregisterSharedMemory",
    ] * 2
    assert not list(memory_dir.iterdir())
