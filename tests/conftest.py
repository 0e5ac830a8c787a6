"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# the same examples every run: a red build means a change, not luck
settings.register_profile(
    "plimsoll",
    deadline=None,
    derandomize=True,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "plimsoll"))
