"""Figures of two sweeps, from when their trials ended."""

from benchmarks.end_to_end import Ending, best_by, compared, seconds_to, spec_for
from benchmarks.plain_ray_tune import choices, plan_of, space_of

OURS = [
    Ending(seconds=20, rate=90.0, kind="measured"),
    Ending(seconds=30, rate=0.0, kind="out_of_memory"),
    Ending(seconds=70, rate=100.0, kind="measured"),
    Ending(seconds=130, rate=500.0, kind="measured"),  # too late
]
THEIRS = [
    Ending(seconds=50, rate=40.0, kind="measured"),
    Ending(seconds=110, rate=91.0, kind="measured"),
]


def test_the_best_so_far() -> None:
    assert [best_by(OURS, at) for at in (10, 20, 60, 70)] == [0.0, 90.0, 90.0, 100.0]


def test_when_a_rate_was_there() -> None:
    assert seconds_to(OURS, 90.0) == 20
    assert seconds_to(OURS, 99.0) == 70
    assert seconds_to(OURS, 501.0) is None
    assert seconds_to(OURS, 0.0) is None


def test_both_are_told_by_minutes_and_by_each_other() -> None:
    told = compared({"ours": OURS, "theirs": THEIRS}, 2)["ways"]

    assert told["ours"]["best_after_minutes"] == {"1": 90.0, "2": 100.0}
    assert told["theirs"]["best_after_minutes"] == {"1": 40.0, "2": 91.0}
    assert told["ours"]["endings"] == {"measured": 2, "out_of_memory": 1}
    assert told["ours"]["seconds_to_own_best"] == 70
    assert told["ours"]["seconds_to_others_best"] == 20  # 90 is within 2 % of 91
    assert told["theirs"]["seconds_to_others_best"] is None


def test_both_search_the_same_plans() -> None:
    space = space_of(spec_for("nowhere"))
    knobs = choices(space)
    plans = [space.table.plan(row) for row in range(len(space.table))]

    assert "accumulation" not in knobs
    assert {"zero_stage", "micro_batch", "checkpoint_ratio", "attention"} <= knobs.keys()
    for plan in plans:
        assert plan_of(space, {name: getattr(plan, name) for name in knobs}) == plan
    assert plan_of(space, {name: values[0] for name, values in knobs.items()} | {"data": 7}) is None
