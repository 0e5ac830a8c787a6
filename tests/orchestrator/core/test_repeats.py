"""Repeats: what several trials of a plan say together, and which plan is measured again."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from scipy import stats

from orchestrator.core.objective import Objective
from orchestrator.core.reasons import Remeasures
from orchestrator.core.records import Record
from orchestrator.core.repeats import next_repeat
from orchestrator.core.speeds import Speeds
from orchestrator.core.state import SweepState
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured, Outcome
from tests.orchestrator.core.values import numbers, state_after
from tests.outcomes import CPU_FINGERPRINT, make_measured, make_oom

ON = {"enabled": True, "repeats": 10}


def searched(*rates: float, **sections: Any) -> SweepState:
    """Returns the state after a search that measured plans at these rates, the baseline first."""
    return state_after(
        [make_measured(rate, 0.5) for rate in rates], **({"validation": ON} | sections)
    )


def again(state: SweepState, number: int, outcome: Outcome | float) -> SweepState:
    """Adds a repeat of a trial's plan, after all others."""
    trial = next(one for one in state.records if one.number == number)
    if isinstance(outcome, float):
        outcome = make_measured(outcome, 0.5)
    last = max(one.ended_at for one in state.records)
    repeat = replace(
        trial,
        number=len(state.records),
        outcome=outcome,
        reason=Remeasures(trial=number),
        started_at=last + 1,
        ended_at=last + 7,
    )
    return replace(state, records=(*state.records, repeat))


def plans(state: SweepState, *trials: int) -> list[Plan]:
    return [state.records[number].plan for number in trials]


def chosen(state: SweepState, *finalists: int, running: Sequence[int] = ()) -> int | None:
    """Returns the trial whose plan is measured again next."""
    plan = next_repeat(
        state.records,
        plans(state, *running),
        plans(state, *finalists),
        state.space.baseline,
        state.spec,
    )
    return None if plan is None else next(r.number for r in state.records if r.plan == plan)


def rate_of(record: Record | None) -> float:
    assert record is not None
    assert isinstance(record.outcome, Measured)
    return record.outcome.samples_per_second.value


def test_the_deviation_between_trials_is_pooled_over_plans() -> None:
    """Two pairs that differ by 20 and 40 %, and one plan that was measured once."""
    state = again(again(searched(10.0, 20.0, 30.0), 0, 12.0), 1, 28.0)
    speeds = Speeds.of(state.records, (), Objective.of(state.spec))

    squares = (math.log(1.2) ** 2 + math.log(1.4) ** 2) / 2
    assert speeds.noise.degrees == 2
    # and the usual one percent, which counts as one observation more
    assert speeds.noise.deviation == pytest.approx(math.sqrt((squares + 0.01**2) / 3), rel=1e-9)
    first, _, third = plans(state, 0, 1, 2)
    assert math.exp(speeds.by_plan[first].mean) == pytest.approx(math.sqrt(10 * 12))
    gpu = replace(CPU_FINGERPRINT, device="cuda")  # where usual is a fifth of that
    on_gpu = [replace(record, fingerprint=gpu) for record in state.records]
    deviation = Speeds.of(on_gpu, (), Objective.of(state.spec)).noise.deviation
    assert deviation == pytest.approx(math.sqrt((squares + 0.002**2) / 3), rel=1e-9)
    quantile = stats.t.ppf(0.975, 3)
    assert speeds.half_width(third) == pytest.approx(quantile * speeds.noise.deviation, rel=1e-3)
    assert speeds.half_width(first) == pytest.approx(speeds.half_width(third) / math.sqrt(2))


def test_first_each_finalist_then_the_baseline_then_the_two_that_lead() -> None:
    state = searched(10.0, 40.0, 39.0, 38.0)
    order = []
    rates = {0: cycle([10.1]), 1: cycle([36.0, 44.0]), 2: cycle([44.0, 36.0]), 3: cycle([30.0])}
    while (number := chosen(state, 1, 2, 3)) is not None:
        order.append(number)
        state = again(state, number, next(rates[number]))

    assert order[:4] == [1, 2, 3, 0]
    assert len(order) == 10  # never clear: as many as there may be, though 12 would do
    assert set(order[4:]) <= {1, 2}
    assert abs(order[4:].count(1) - order[4:].count(2)) <= 1  # in turn


@pytest.mark.parametrize(
    ("off", "budget", "most"),
    [
        (0.005, {}, 3),
        (0.06, {}, 12),  # a deviation of 6 %: a quarter of the way from 1 to 20 %
        (0.5, {}, 40),
        (0.5, {"trials": 7}, 7),
        (0.5, {"minutes": 0.5}, 6),  # of 6 s each, and the one that is over
    ],
)
def test_there_are_as_many_repeats_as_the_machine_is_noisy(
    off: float, budget: dict[str, float], most: int
) -> None:
    budget = {"trials": 60, "minutes": 60} | budget
    validation = {"enabled": True, "repeats": 60}
    state = searched(10.0, 40.0, 39.0, 38.0, validation=validation, budget=budget)
    for done in range(60):
        number = chosen(state, 1, 2, 3)
        if number is None:
            break
        rate = rate_of(state.records[number]) * math.exp(off * (-1) ** (done // 2))
        state = again(state, number, rate)

    assert done == pytest.approx(most, abs=2)


def test_drift_that_plans_share_does_not_blur_their_difference() -> None:
    """The machine is 30 % slower for six trials at a time; one plan is 4 % faster."""
    state = searched(10.0, 40.0, 41.6)
    for done in range(24):
        slow = 0.7 if done // 6 % 2 else 1.0
        for number in (1, 2):
            state = again(state, number, rate_of(state.records[number]) * slow)
    speeds = state.speeds
    slower, faster = plans(state, 1, 2)

    assert speeds.noise.drift > 0.5
    assert speeds.noise.is_noisy
    assert speeds.score(faster) - speeds.score(slower) == pytest.approx(math.log(1.04), abs=0.01)
    assert speeds.margin(faster, slower) < speeds.half_width(faster) / 2


def test_a_clear_leader_is_enough() -> None:
    state = searched(10.0, 40.0, 30.0)
    for number in (1, 2, 0):
        assert chosen(state, 1, 2) == number
        state = again(state, number, rate_of(state.records[number]) * 1.002)

    assert chosen(state, 1) is None


@pytest.mark.parametrize(
    ("finalists", "sections"),
    [
        ((), {}),
        ((0,), {}),  # the baseline alone: nothing to decide
        ((1, 2), {"validation": {"enabled": True, "repeats": 0}}),
    ],
)
def test_nothing_is_measured_again(finalists: tuple[int, ...], sections: dict[str, Any]) -> None:
    assert chosen(searched(10.0, 40.0, 39.0, **sections), *finalists) is None


def test_repeats_are_counted_anew_after_other_trials() -> None:
    state = searched(10.0, 40.0, 39.0, validation={"enabled": True, "repeats": 1})
    state = again(state, 1, 40.0)
    assert chosen(state, 1, 2) is None
    last = state.records[-1]
    more = replace(state.records[2], number=9, started_at=last.ended_at + 1)
    more = replace(more, ended_at=last.ended_at + 9)

    assert chosen(replace(state, records=(*state.records, more)), 1, 2) == 1


def test_the_lucky_trial_is_not_the_answer() -> None:
    """One trial of a noisy machine was 25 % too fast."""
    state = searched(10.0, 50.0, 42.0, 41.0)
    assert state.best is not None
    assert state.best.number == 1
    for number, rate in ((1, 38.0), (2, 42.5), (3, 40.5), (1, 37.5), (2, 42.0)):
        state = again(state, number, rate)

    best = state.best
    assert best is not None
    assert best.number == 2
    assert rate_of(best) == pytest.approx((42.0 * 42.5 * 42.0) ** (1 / 3))
    outcome = best.outcome
    assert isinstance(outcome, Measured)
    assert outcome.step_seconds.value * rate_of(best) == pytest.approx(
        rate_of(state.records[2]) * state.records[2].outcome.step_seconds.value  # type: ignore[union-attr]
    )


def test_trials_of_few_steps_do_not_make_a_plan_slower() -> None:
    """Their intervals have no end, but their means are as good as others."""
    state = searched(10.0, 40.0, 30.0)
    endless = Estimate(value=40.0, low=0.0, high=1e300)
    vague = replace(make_measured(40.0, 0.5), samples_per_second=endless)
    records = (state.records[0], replace(state.records[1], outcome=vague), state.records[2])
    state = replace(state, records=records)
    for number, outcome in ((1, vague), (2, 30.3)):
        state = again(state, number, outcome)

    assert state.best is not None
    assert state.best.number == 1


def test_a_plan_that_was_not_measured_again_has_to_be_faster_beyond_doubt() -> None:
    state = searched(10.0, 40.0, 39.0, 41.0)
    for number in (1, 2):
        state = again(state, number, 40.2)
    assert state.best is not None
    assert state.best.number == 1  # 41.0 once is no more than luck

    faster = searched(10.0, 40.0, 39.0, 80.0)
    for number in (1, 2):
        faster = again(faster, number, 40.2)
    assert faster.best is not None
    assert faster.best.number == 3


@pytest.mark.parametrize("outcome", [make_oom(), make_measured(60.0, 0.97)])
def test_a_plan_that_fails_when_measured_again_is_out(outcome: Outcome) -> None:
    state = again(again(searched(10.0, 40.0, 39.0), 1, outcome), 2, 39.0)

    assert numbers(state.ties) == [2]
