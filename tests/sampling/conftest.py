"""The devices that are here, and the layers of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from logitd.sampling import layered_table

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread for torch: where all cores are busy, two that wait for each other take twice as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def two_layers() -> Iterator[None]:
    """Tables keep what is recent apart even where they are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layered_table, "_FEW_ENTRIES", 2)
        patch.setattr(layered_table, "_SHARE", 1)
        yield


@pytest.fixture(scope="module", params=["one layer", "two layers"])
def any_layers(request: pytest.FixtureRequest) -> None:
    """Small tables as they are, and in two layers."""
    if request.param == "two layers":
        request.getfixturevalue("two_layers")
