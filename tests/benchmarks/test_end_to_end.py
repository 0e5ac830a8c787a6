"""Figures of two sweeps, from when their trials ended."""

import pytest

from benchmarks.end_to_end import (
    OURS,
    THEIRS,
    Ending,
    best_by,
    compared,
    seconds_to,
    spec_for,
    summary,
)
from benchmarks.plain_ray_tune import choices, plan_of, space_of

FAST = [
    Ending(seconds=20, rate=90.0, kind="measured"),
    Ending(seconds=30, rate=0.0, kind="out_of_memory"),
    Ending(seconds=70, rate=100.0, kind="measured"),
    Ending(seconds=130, rate=500.0, kind="measured"),  # too late
]
SLOW = [
    Ending(seconds=50, rate=40.0, kind="measured"),
    Ending(seconds=110, rate=91.0, kind="measured"),
]


def test_the_best_so_far() -> None:
    assert [best_by(FAST, at) for at in (10, 20, 60, 70)] == [0.0, 90.0, 90.0, 100.0]


def test_when_a_rate_was_there() -> None:
    assert seconds_to(FAST, 90.0) == 20
    assert seconds_to(FAST, 99.0) == 70
    assert seconds_to(FAST, 501.0) is None
    assert seconds_to(FAST, 0.0) is None


def test_both_are_told_by_minutes_and_by_each_other() -> None:
    told = compared({"ours": FAST, "theirs": SLOW}, 2)["ways"]

    assert told["ours"]["best_after_minutes"] == {"1": 90.0, "2": 100.0}
    assert told["theirs"]["best_after_minutes"] == {"1": 40.0, "2": 91.0}
    assert told["ours"]["endings"] == {"measured": 2, "out_of_memory": 1}
    assert told["ours"]["seconds_to_own_best"] == 70
    assert told["ours"]["seconds_to_others_best"] == 20  # 90 is within 2 % of 91
    assert told["theirs"]["seconds_to_others_best"] is None


def test_answers_are_compared_pair_by_pair() -> None:
    """Ours are 2, 4 and 1 times as fast, 2 by their geometric mean; one pair has no answer."""
    ways = compared({OURS: FAST, THEIRS: SLOW}, 2)
    rates = [(20.0, 10.0), (40.0, 10.0), (10.0, 10.0), (10.0, 0.0)]
    told = summary([ways | {"afresh": {OURS: ours, THEIRS: theirs}} for ours, theirs in rates])

    assert told["answers"] == {OURS: 4, THEIRS: 3}
    assert told["faster"][0] == pytest.approx(2.0)
    assert 1.0 <= told["faster"][1] < 2.0 < told["faster"][2] <= 4.0
    assert told["faster_in"] == 2
    assert told["trials"] == {OURS: 3, THEIRS: 2}
    assert told["seconds_to_others_best"] == 20


def test_both_search_the_same_plans() -> None:
    space = space_of(spec_for("nowhere"))
    knobs = choices(space)
    plans = [space.table.plan(row) for row in range(len(space.table))]

    assert "accumulation" not in knobs
    assert {"zero_stage", "micro_batch", "checkpoint_ratio", "attention"} <= knobs.keys()
    for plan in plans:
        assert plan_of(space, {name: getattr(plan, name) for name in knobs}) == plan
    assert plan_of(space, {name: values[0] for name, values in knobs.items()} | {"data": 7}) is None
