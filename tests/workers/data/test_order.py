"""Samples of a step: their order over the steps, and their ranks and micro-batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.costs.sequence_packing import cut_by_tokens, pack, width
from search_spaces.plan import Plan
from tests.plans import ddp_plan
from workers.data.batches import deal_samples, excess_tokens, longest_samples, step_samples
from workers.measure.interval import mean_estimate

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


DISTRIBUTIONS = {
    "lognormal to 1024": lambda rng: rng.lognormal(4.5, 1.0, 2048).clip(8, 1024),
    "lognormal to 4096": lambda rng: rng.lognormal(5.5, 1.2, 2048).clip(8, 4096),
    "nine in ten short": lambda rng: np.where(rng.random(2048) < 0.9, 128, 1024),
}
ARRANGED = {
    (micro, data, batching)
    for micro, data in ((1, 1), (4, 1), (16, 1), (4, 2), (16, 2))
    for batching in ("padded", "grouped", "packed")
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_few_steps_rank_plans_as_a_plain_loop_over_an_epoch_does(name: str) -> None:
    lengths = DISTRIBUTIONS[name](np.random.default_rng(1)).astype(np.int32)
    truths, estimates = [], []
    for micro, data, batching in sorted(ARRANGED):
        plan = _plan(micro, 64 // (micro * data), data, batching)
        seconds = [
            1e-3 * plan.accumulation + 1e-6 * _row_tokens(lengths, step, plan) for step in range(32)
        ]
        excess = [excess_tokens(lengths, step, plan, 1, 0) for step in range(32)]
        estimate = mean_estimate(seconds[:16], excess=excess[:16])
        truths.append(np.mean(seconds))
        estimates.append(estimate.value)

        assert sum(excess) == pytest.approx(0, abs=1e-6)
        assert estimate.value == pytest.approx(
            truths[-1], rel=0.025 if batching == "packed" else 1e-6
        )
    clear = np.subtract.outer(truths, truths) > 0.02 * np.mean(truths)

    assert (np.subtract.outer(estimates, estimates)[clear] > 0).all()


@pytest.mark.parametrize("data", [1, 2])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_few_steps_that_tokens_limit_are_as_long_as_an_epoch(name: str, data: int) -> None:
    lengths = DISTRIBUTIONS[name](np.random.default_rng(1)).astype(np.int32)
    plan = replace(_plan(32, 2, data, "grouped"), micro_batch_tokens=2 * int(lengths.max()))
    seconds = [1e-6 * _row_tokens(lengths, step, plan) for step in range(32)]
    excess = [excess_tokens(lengths, step, plan, 1, 0) for step in range(32)]
    few, raw = (mean_estimate(seconds[:16], excess=each) for each in (excess[:16], [0.0] * 16))

    assert few.value == pytest.approx(np.mean(seconds), rel=0.025)
    assert few.high - few.low < raw.high - raw.low


def _row_tokens(lengths: np.ndarray, step: int, plan: Plan) -> int:
    """Returns the tokens in the rows of the rank with most, as `collate` makes them."""
    numbers = step_samples(lengths, step, plan.global_batch, 0)
    ranks = []
    for micro_batches in deal_samples(numbers, lengths[list(numbers)].tolist(), plan):
        own = [lengths[list(micro)].tolist() for micro in micro_batches]
        if plan.batching == "packed":
            rows = [(pack(micro, int(lengths.max())), micro) for micro in own]
            ranks.append(sum(len(bins) * width(bins, micro) for bins, micro in rows))
        else:
            ranks.append(sum(len(micro) * max(micro) for micro in own))
    return max(ranks)


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


@given(
    lengths=st.lists(st.integers(2, 99), min_size=30, max_size=30),
    tokens=st.integers(104, 400),
    batching=st.sampled_from(["padded", "grouped"]),
    data=st.sampled_from([1, 2, 3, 5]),
    multiple=st.sampled_from([1, 8]),
    evenly=st.booleans(),
)
def test_tokens_limit_micro_batches_of_which_all_ranks_have_as_many(
    lengths: list[int], tokens: int, batching: Any, data: int, multiple: int, evenly: bool
) -> None:
    plan = replace(_plan(6, 5, 1, batching), micro_batch_tokens=tokens, data=data)

    dealt = deal_samples(tuple(range(30)), lengths, plan, multiple, evenly=evenly)

    assert len(dealt) == data
    assert len({len(rank) for rank in dealt}) == 1
    assert sorted(n for rank in dealt for micro in rank for n in micro) == list(range(30))
    sizes = [_rows(lengths, micro, multiple) for rank in dealt for micro in rank]
    assert all(0 < rows <= 6 and 0 < size <= tokens for rows, size in sizes)


def _rows(lengths: list[int], micro: tuple[int, ...], multiple: int) -> tuple[int, int]:
    widest = -(-max(lengths[number] for number in micro) // multiple) * multiple
    return len(micro), len(micro) * widest


def test_ranks_share_the_least_number_of_micro_batches_evenly() -> None:
    """Two do for one rank; three ranks need three, whose largest has 24 tokens, not 40."""
    widths = [10, 8, 8, 8, 6, 4, 4, 2]

    assert cut_by_tokens(widths, 8, 40, 1) == [range(4), range(4, 8)]
    assert cut_by_tokens([10] * 6, 8, 40, 1) == [range(3), range(3, 6)]
    assert cut_by_tokens([10] * 6, 8, 40, 1, evenly=False) == [range(4), range(4, 6)]
    assert cut_by_tokens(widths, 8, 40, 3) == [range(2), range(2, 5), range(5, 8)]
    assert cut_by_tokens(widths, 2, 40, 4) == [range(at, at + 2) for at in (0, 2, 4, 6)]
    assert len(cut_by_tokens([9, 9], 8, 40, 2)) == 2  # one for each rank


def test_padded_keeps_data_order() -> None:
    plan = _plan(2, 2, 2, "padded")

    assert deal_samples(tuple(range(8)), [9, 2, 8, 3, 7, 4, 6, 5], plan) == (
        ((0, 1), (4, 5)),
        ((2, 3), (6, 7)),
    )
