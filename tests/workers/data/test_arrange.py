"""Assignment of samples to ranks and micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.plan import Plan
from tests.plans import ddp_plan
from workers.data.batches import deal_samples


def _plan(micro_batch: int, accumulation: int, data: int, batching: Any) -> Plan:
    layout = {"micro_batch": micro_batch, "accumulation": accumulation, "data": data}
    return ddp_plan(**layout, batching=batching)


PLANS = st.builds(
    _plan,
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["padded", "grouped", "packed"]),
)


@given(plan=PLANS, source=st.data())
def test_every_sample_exactly_once(plan: Plan, source: Any) -> None:
    count = plan.global_batch
    numbers = tuple(source.draw(st.permutations(range(100, 100 + count))))
    lengths = source.draw(st.lists(st.integers(2, 99), min_size=count, max_size=count))

    dealt = deal_samples(numbers, lengths, plan)

    assert len(dealt) == plan.data
    assert {len(rank) for rank in dealt} == {plan.accumulation}
    assert {len(micro) for rank in dealt for micro in rank} == {plan.micro_batch}
    assert sorted(n for rank in dealt for micro in rank for n in micro) == sorted(numbers)


@given(plan=PLANS, source=st.data())
def test_grouped_ranks_are_neighbours_in_length(plan: Plan, source: Any) -> None:
    count = plan.global_batch
    lengths = source.draw(st.lists(st.integers(2, 99), min_size=count, max_size=count))
    grouped = _plan(plan.micro_batch, plan.accumulation, plan.data, "grouped")

    dealt = deal_samples(tuple(range(count)), lengths, grouped)

    for micro in range(plan.accumulation - 1):
        now = [lengths[n] for rank in dealt for n in rank[micro]]
        later = [lengths[n] for rank in dealt for n in rank[micro + 1]]
        assert min(now) >= max(later)


def test_padded_keeps_data_order() -> None:
    plan = _plan(2, 2, 2, "padded")

    assert deal_samples(tuple(range(8)), [9, 2, 8, 3, 7, 4, 6, 5], plan) == (
        ((0, 1), (4, 5)),
        ((2, 3), (6, 7)),
    )


def test_grouped_swaps_ends() -> None:
    plan = _plan(1, 2, 2, "grouped")

    assert deal_samples((0, 1, 2, 3), [9, 8, 7, 6], plan) == (((0,), (3,)), ((1,), (2,)))


def test_counts_must_match() -> None:
    with pytest.raises(ValueError, match=r"3 samples.*takes 4"):
        deal_samples((0, 1, 2), [1, 1, 1], _plan(2, 2, 1, "padded"))
