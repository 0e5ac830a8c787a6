"""The busy share of worker groups, against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.events import Event, SweepStarted, TrialEnded, TrialStarted
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.state import SweepState, advance, begin
from orchestrator.tracking.metrics import GroupUse, busy_share, utilization
from search_spaces.trial import Cancelled, NodesLost
from tests.orchestrator.records import BEGAN, make_record, make_space, make_spec, some_plans
from tests.outcomes import make_measured

SPEC = make_spec()
SPACE = make_space(SPEC)
PLANS = some_plans(SPACE, 4)


def started(groups: int) -> SweepStarted:
    return SweepStarted(
        study="demo",
        spec=SPEC,
        space=SPACE,
        records=(make_record(9, PLANS[3], make_measured()),),  # of an earlier driver
        memory_limit_bytes=None,
        at=BEGAN,
        groups=groups,
    )


def handed(number: int, at: float) -> TrialStarted:
    return TrialStarted(
        number=number, plan=PLANS[number], reason=IsBaseline(), deadline_seconds=60, at=BEGAN + at
    )


def ended(number: int, at: float, waited: float | None) -> TrialEnded:
    record = replace(make_record(number, PLANS[number], make_measured()), ended_at=BEGAN + at)
    if waited is None:
        record = replace(record, outcome=Cancelled(cause=NodesLost(nodes=("a",))))
    return TrialEnded(record=record, at=BEGAN + at, waited_seconds=waited)


def after(first: SweepStarted, *events: Event) -> tuple[GroupUse, SweepState]:
    state = begin(first)
    meter = utilization(GroupUse(), first, state)
    for event in events:
        meter, state = utilization(meter, event, state), advance(state, event)
    return meter, state


def share(meter: GroupUse, state: SweepState, at: float) -> float | None:
    return busy_share(meter, state, BEGAN + at)


def test_one_group_waits_runs_and_is_idle() -> None:
    """The trial starts at 10, its workers are ready at 14, it ends at 20, and the end is at 22."""
    seen = after(started(1), handed(0, 10), ended(0, 20, waited=4))

    assert share(*seen, at=20) == pytest.approx(6 / 10)
    assert share(*seen, at=22) == pytest.approx(6 / 12)


def test_what_is_under_way_counts_once_it_has_ended() -> None:
    """Two groups from 0: one ran from 2 to 10, the other is running; then 10 to 16, no waits."""
    until_ten = [handed(0, 0), handed(1, 0), ended(0, 10, waited=2)]

    assert share(*after(started(2), *until_ten), at=10) == pytest.approx(8 / 10)
    assert share(*after(started(2), *until_ten, handed(2, 10)), at=15) == pytest.approx(8 / 10)
    both = after(started(2), *until_ten, handed(2, 10), ended(1, 16, waited=1))
    # 8 of trial 0 and 15 of trial 1, over two groups' 16 s less the 6 s of trial 2
    assert share(*both, at=16) == pytest.approx((8 + 15) / (32 - 6))


def test_nothing_is_known_before_a_trial_of_this_driver_ends() -> None:
    assert share(*after(started(1)), at=5) is None
    assert share(*after(started(2), handed(0, 0)), at=5) is None
