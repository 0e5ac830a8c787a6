"""Noise of a device: what the windows of one trial do not show of a plan's speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # records hold noise, and what reads records does without arrays
    import numpy as np
    from numpy.typing import NDArray

# If no window of n stalled, at most 3 / n of all do, with 95 % confidence
_RULE_OF_THREE = 3.0
_MAX_ALLOWANCE = 0.1  # one accident must not make all plans of a sweep equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Stalls of a device as far as known, and how much trials of the same plan differ on it.

    Attributes:
        slowdown: Slowdown of a window by a stall that no trial has met, as a share of its time.
        deviation: Standard deviation between trials of a plan, in logarithms, before any repeat.
        narrows: True if quiet seconds of earlier trials narrow the intervals of later ones.
        seconds: Seconds of steps that earlier trials measured on the device.
        stall_seconds: Seconds of these that were lost to stalls.
    """

    slowdown: float
    deviation: float
    narrows: bool
    seconds: float = 0.0
    stall_seconds: float = 0.0

    def allowance(self, windows: int, window_seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns by what share of its mean step stalls may slow a plan that no window caught.

        It shrinks with the windows of the trial and with quiet seconds of earlier trials, and grows
        with their stalls. Seconds are compared, so that trials with windows of any length count.

        Args:
            windows: Number of windows of the trial.
            window_seconds: Their mean duration.

        Source:
            Rule of three: Hanley and Lippman-Hand, "If nothing goes wrong, is everything all
            right?", JAMA 249(13), 1983.
        """
        import numpy as np

        unseen = _RULE_OF_THREE * self.slowdown * window_seconds
        watched = max(windows, _RULE_OF_THREE) * window_seconds
        share = (unseen + self.stall_seconds) / (watched + self.seconds)
        if not self.narrows:
            share = np.maximum(share, unseen / watched)
        return np.minimum(share, _MAX_ALLOWANCE)


def noise_prior(device: str) -> Noise:
    """Returns the noise of a device, "cpu" or "cuda", before any trial.

    On CPU, the allowance was chosen on the noise models of `benchmarks.coverage`, where it also
    covers steps that depend on each other: quiet windows do not narrow it.

    Source:
        `benchmarks/results/gpu/h200/plans.csv`: in 36 windows of six plans no window was slower
        than the mean of its trial by more than 1 %, and two trials of a plan differ by 0.04 %.
    """
    if device == "cpu":
        return Noise(slowdown=0.1, deviation=0.01, narrows=False)
    return Noise(slowdown=0.01, deviation=0.002, narrows=True)
