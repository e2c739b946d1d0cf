"""The devices that are here, and one reproducible hypothesis profile."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples in every run: a failure in CI is a failure at the desk. Two busy cores know no deadline.
settings.register_profile(
    "logitd",
    derandomize=True,
    deadline=None,
    print_blob=True,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("logitd")

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
