"""One reproducible hypothesis profile for the property tests of every folder."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ModuleNotFoundError):  # the oldest dependencies, and those of some folders, come without it
    from hypothesis import HealthCheck, settings

    # The same examples in every run: a failure in CI is a failure at the desk. Two busy cores know no deadline. Loaded
    # here, before any test module: a test keeps the profile that stood when its module was imported.
    settings.register_profile(
        "logitd",
        derandomize=True,
        deadline=None,
        print_blob=True,
        max_examples=100,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile("logitd")
