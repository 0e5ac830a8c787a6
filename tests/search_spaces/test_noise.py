"""The allowance for stalls that no window of a trial caught: by hand, and what it follows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.hardware.noise import Noise, noise_prior

WINDOWS, SECONDS = st.integers(1, 200), st.floats(0.01, 100)
DEVICES = st.sampled_from(["cpu", "cuda"])


def allowance(noise: Noise, windows: int, window_seconds: float) -> float:
    return float(noise.allowance(windows, np.asarray(window_seconds)))


@given(DEVICES, WINDOWS, SECONDS, SECONDS, st.floats(0, 1), st.floats(0, 1))
def test_quiet_seconds_shrink_the_allowance_and_stalls_let_it_grow(
    device: str, windows: int, length: float, seconds: float, share: float, more: float
) -> None:
    noise = replace(noise_prior(device), seconds=seconds, stall_seconds=share * seconds)
    learned = allowance(noise, windows, length)

    assert 0 < learned <= 0.1
    assert allowance(noise, windows + 1, length) <= learned * (1 + 1e-9)
    stalls = replace(noise, stall_seconds=noise.stall_seconds + more)
    assert allowance(stalls, windows, length) >= learned
    quiet = replace(noise, seconds=noise.seconds + more)
    assert allowance(quiet, windows, length) <= learned
    if device == "cpu":
        assert learned >= allowance(noise_prior("cpu"), windows, length)


@pytest.mark.parametrize(
    ("device", "seconds", "stall_seconds", "expected"),
    [
        ("cpu", 0.0, 0.0, 0.3 / 6),
        ("cuda", 0.0, 0.0, 0.03 / 6),
        ("cpu", 48.0, 0.0, 0.3 / 6),  # where quiet windows do not narrow it
        ("cuda", 48.0, 0.0, 0.06 / 60),
        ("cpu", 48.0, 3.0, 3.6 / 60),
        ("cuda", 48.0, 3.0, 3.06 / 60),
        ("cuda", 48.0, 40.0, 0.1),
    ],
)
def test_six_windows_of_two_seconds(
    device: str, seconds: float, stall_seconds: float, expected: float
) -> None:
    noise = replace(noise_prior(device), seconds=seconds, stall_seconds=stall_seconds)

    assert allowance(noise, 6, 2.0) == pytest.approx(expected)
