"""The Go sample against a real server: each message and each answer is the golden one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop.conversations import assert_golden, beam_lines, greedy_lines
from interop.toolchains import ROOT, build_folder, needs, run

if TYPE_CHECKING:
    from interop.recorder import Recording

pytestmark = pytest.mark.timeout(900)

_GRPC = Path("/usr/share/gocode/src/google.golang.org/grpc")


@pytest.fixture(scope="module")
def decoder() -> Path:
    """The program, made from the sources as they are now, after its own tests against the golden vectors."""
    needs("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc", files=(_GRPC,))
    folder = build_folder("go")
    assert "ok" in run(str(ROOT / "go" / "build.sh"), str(folder))
    return folder / "decoder"


def test_dense_sparse_and_the_beams_are_golden(decoder: Path, recorded: Recording) -> None:
    output = run(str(decoder), recorded.target)
    assert output.splitlines() == [*greedy_lines("dense"), *greedy_lines("sparse"), *beam_lines()]
    batches = recorded.batches()
    assert len(batches) == 3
    for batch, scenario in zip(batches, ("dense", "sparse", "beams"), strict=True):
        assert_golden(batch, scenario)
