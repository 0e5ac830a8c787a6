"""Samples of a step: their order over the steps, and their ranks and micro-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.plan import Plan
from tests.plans import ddp_plan
from workers.data.batches import deal_samples, longest_samples, step_samples

LENGTHS = st.lists(st.integers(2, 500), min_size=1, max_size=60).map(
    lambda lengths: np.array(lengths, dtype=np.int32)
)


@given(lengths=LENGTHS, global_batch=st.integers(1, 70), seed=st.integers(0, 3))
def test_no_sample_twice_in_an_epoch(lengths: np.ndarray, global_batch: int, seed: int) -> None:
    steps = max(len(lengths) // global_batch, 1)
    for epoch in (0, 1):
        drawn = [
            number
            for step in range(epoch * steps, (epoch + 1) * steps)
            for number in step_samples(lengths, step, global_batch, seed)
        ]
        times = np.bincount(drawn, minlength=len(lengths))

        assert len(drawn) == steps * global_batch
        assert times.max() <= -(-global_batch // len(lengths))


@given(lengths=LENGTHS, global_batch=st.integers(1, 70))
def test_longest_come_first(lengths: np.ndarray, global_batch: int) -> None:
    drawn = lengths[list(longest_samples(lengths, global_batch))].tolist()

    assert len(drawn) == global_batch
    assert drawn == sorted(drawn, reverse=True)
    assert drawn[0] == lengths.max()
    if global_batch <= len(lengths):
        assert drawn == sorted(lengths.tolist(), reverse=True)[:global_batch]


def test_steps_are_alike_in_length_but_not_in_samples() -> None:
    lengths = np.random.default_rng(0).geometric(0.01, size=4096).clip(2, 1024).astype(np.int32)
    stratified = [lengths[list(step_samples(lengths, step, 32, 0))].sum() for step in range(100)]
    random = [lengths[np.random.default_rng(i).integers(4096, size=32)].sum() for i in range(100)]

    assert np.std(stratified) < np.std(random) / 4
    assert np.mean(stratified) == pytest.approx(32 * lengths.mean(), rel=0.02)
    assert set(step_samples(lengths, 0, 32, 0)).isdisjoint(step_samples(lengths, 1, 32, 0))


def test_the_order_depends_on_the_seed_and_the_epoch() -> None:
    lengths = np.arange(2, 66, dtype=np.int32)

    assert step_samples(lengths, 5, 8, 0) == step_samples(lengths.copy(), 5, 8, 0)
    assert step_samples(lengths, 5, 8, 0) != step_samples(lengths, 5, 8, 1)
    assert step_samples(lengths, 5, 8, 0) != step_samples(lengths, 5 + 8, 8, 0)


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
