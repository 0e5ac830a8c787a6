"""Observations of each outcome."""

import math
from dataclasses import replace

import pytest

from orchestrator.core.trial_noise import TrialNoise
from orchestrator.search.observations import observation_of, rates, with_noise
from search_spaces.trial import Cancelled, Crashed, Diverged, Outcome, Stopped, TimedOut
from tests.orchestrator.records import make_plan, make_record, make_spec
from tests.outcomes import make_measured, make_oom

SPEC = make_spec(objective={"max_seconds": 10})


def observed(outcome: Outcome):  # type: ignore[no-untyped-def]
    return observation_of(make_record(0, make_plan(), outcome), 7, SPEC)


def test_a_measurement_shows_throughput_and_peak() -> None:
    seen = observed(make_measured(40.0, 0.6))

    assert (seen.row, seen.fitted, seen.measured, seen.ran_out, seen.failed) == (
        *(7, True, True, False),
        False,
    )
    assert seen.log_rate == pytest.approx(math.log(40))
    assert math.exp(seen.log_share) == pytest.approx(0.6, rel=1e-6)
    assert seen.rate_noise == pytest.approx(math.log(1.015) / 1.96)


def test_out_of_memory_is_a_bound_at_what_was_wanted() -> None:
    told, silent = observed(make_oom(1.3)), observed(make_oom(None))

    assert told.ran_out
    assert not told.failed
    assert math.exp(told.log_share) == pytest.approx(1.3, rel=1e-6)
    assert silent.ran_out
    assert silent.log_share == 0.0


def test_no_end_in_time_bounds_the_throughput() -> None:
    """Three steps of 16 samples take longer than the deadline of 100 s minus 10 s of measuring."""
    seen = observed(TimedOut(deadline_seconds=100, detail="no end"))

    assert seen.too_slow
    assert seen.failed
    assert not seen.measured
    assert math.exp(seen.log_rate) == pytest.approx(3 * 16 / 90)
    short = observed(TimedOut(deadline_seconds=5, detail="no end"))  # than measuring takes
    assert (short.log_rate, short.failed) == (None, True)


@pytest.mark.parametrize(
    "outcome",
    [
        make_oom(None, where="host", limit_bytes=None),
        Crashed(cause="exception", rank=0, phase="forward", detail="no"),
        Diverged(step=1, loss="nan", costs=None),
    ],
)
def test_what_memory_of_the_device_does_not_explain_broke(outcome: Outcome) -> None:
    seen = observed(outcome)

    assert seen.failed
    assert (seen.log_rate, seen.log_share, seen.ran_out) == (None, None, False)


def test_a_cancelled_trial_shows_nothing() -> None:
    assert observed(Cancelled(cause=Stopped(by="Ctrl-C"))) is None


def test_a_measurement_is_as_uncertain_as_trials_of_a_plan_differ() -> None:
    seen = [observed(make_measured(40.0, 0.6)), observed(make_oom(0.25))]

    precise, bound = with_noise(seen, TrialNoise(deviation=0.2))
    assert precise.rate_noise == 0.2
    assert bound == seen[1]
    assert with_noise(seen, TrialNoise(deviation=0.001)) == seen


def test_trials_soon_after_each_other_share_the_drift() -> None:
    noise = TrialNoise(deviation=0.2, drift=0.75, seconds=100.0)
    first, near, far = (
        replace(one, at=at)
        for at, one in zip((0.0, 100.0, 1e6), [observed(make_measured(40.0, 0.6))] * 3, strict=True)
        if one is not None
    )
    together = rates(with_noise([first, near, far], noise))[1].together

    assert together is not None
    assert together[0].tolist() == pytest.approx([0.03, 0.03 / math.e, 0.0])
