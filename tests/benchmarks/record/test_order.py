"""Every plan as often as asked for, in orders of their own, and groups seldom restarted."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.record.order import sample, turns
from orchestrator.core.placement import Processes
from tests.orchestrator.records import make_plan

PLANS = tuple(
    make_plan(micro_batch=micro, accumulation=16 // micro // data, data=data, allocator=allocator)
    for data in (1, 2)
    for allocator in ("default", "mmap")
    for micro in (1, 2, 4, 8)
)


def test_each_repeat_has_all_plans_in_an_order_of_its_own() -> None:
    order = turns(PLANS, 3, "cpu")

    repeats = [[turn.plan for turn in order if turn.repeat == repeat] for repeat in (1, 2, 3)]
    assert [turn.repeat for turn in order] == [1] * 16 + [2] * 16 + [3] * 16
    assert all(sorted(plans, key=PLANS.index) == list(PLANS) for plans in repeats)
    assert len({tuple(plans) for plans in repeats}) == 3


def test_a_repeat_more_leaves_the_order_of_the_others() -> None:
    assert turns(PLANS, 3, "cpu")[: 2 * len(PLANS)] == turns(PLANS, 2, "cpu")


def test_plans_of_the_same_processes_stand_together() -> None:
    needed = [Processes.of(turn.plan, "cpu") for turn in turns(PLANS, 3, "cpu")]

    changes = sum(one != other for one, other in itertools.pairwise(needed))
    assert changes == 3 * (4 - 1)  # a repeat begins with the group that the last one ended with


@given(count=st.integers(1, 60), limit=st.integers(1, 80))
def test_a_sample_takes_no_plan_twice_and_its_share_of_each_stretch(count: int, limit: int) -> None:
    plans = tuple(make_plan(bucket_mib=size) for size in range(1, count + 1))

    chosen = sample(plans, limit)

    assert chosen == sample(plans, limit)
    assert len(chosen) == len(set(chosen)) == min(limit, count)
    places = [plans.index(plan) for plan in chosen]
    assert places == sorted(places)
    if limit < count:
        assert all(
            index * count // limit <= place < (index + 1) * count // limit
            for index, place in enumerate(places)
        )
