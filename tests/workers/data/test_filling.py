"""Forecast fill ratios of micro-batches, compared with the batches that workers make."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.costs.footprint import Footprint
from search_spaces.costs.sequence_packing import (
    fill_ratios,
    largest_fill,
    longest_fill,
    mean_passes,
)
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.specification.schema import SweepSpec
from tests.plans import ddp_plan
from workers.data.batches import WORST_STEP
from workers.models.built import BuiltModel, batch_source
from workers.tracing.variants import lengths_of

ROW_TOKENS, GLOBAL_BATCH, STEPS = 192, 16, 40
# most are short, a few as long as a row, as in collections of texts
SPEC = SweepSpec.model_validate(
    {
        "model": "gpt2",
        "data": {"lengths": {6: 4, 15: 3, 33: 2, 70: 1, ROW_TOKENS: 0.4}},
        "train": {"global_batch": GLOBAL_BATCH, "sequence_length": ROW_TOKENS},
    }
)
MODEL = BuiltModel(
    module=torch.nn.Linear(1, 1), blocks=(), task="causal-lm", vocab_size=100, batch_maker=None
)


def footprint() -> Footprint:
    lengths = lengths_of(MODEL, SPEC)
    return Footprint(
        model="any",
        digest="",
        tokens=lengths[-1],
        depth=1,
        tied_parameters=0,
        varied=True,
        lengths=lengths,
        row_tokens=ROW_TOKENS,
        variants=(),
    )


def seen(plan: Plan) -> float:
    """Mean size of the micro-batches of some steps over all ranks, as a share of full rows."""
    source = batch_source(MODEL, SPEC)
    tokens = [
        batch.inputs["input_ids"].numel()
        for step in range(STEPS)
        for rank in range(plan.data)
        for batch in source.step(plan, rank, step).batches
    ]
    return float(np.mean(tokens)) / (plan.micro_batch * ROW_TOKENS)


@pytest.mark.parametrize(
    ("batching", "multiple"),
    [("padded", 1), ("padded", 8), ("padded", 64), ("grouped", 1), ("grouped", 64), ("packed", 1)],
)
@pytest.mark.parametrize(("micro_batch", "data"), [(1, 1), (2, 2), (4, 1), (8, 2), (16, 1)])
def test_rows_are_as_full_as_those_of_the_workers(
    batching: str, multiple: int, micro_batch: int, data: int
) -> None:
    plan = ddp_plan(
        micro_batch=micro_batch,
        data=data,
        accumulation=GLOBAL_BATCH // micro_batch // data,
        batching=batching,
        pad_multiple=multiple,
    )

    (share,) = fill_ratios(PlanTable.of([plan]), footprint())

    assert share == pytest.approx(seen(plan), rel=0.06)


@pytest.mark.parametrize(("batching", "multiple"), [("padded", 8), ("grouped", 1)])
@pytest.mark.parametrize(("tokens", "data"), [(192, 1), (192, 2), (576, 1), (576, 2)])
def test_passes_that_tokens_limit_are_as_many_and_as_full_as_those_of_the_workers(
    batching: Any, multiple: int, tokens: int, data: int
) -> None:
    plan = ddp_plan(
        **{"micro_batch": 8, "data": data, "accumulation": GLOBAL_BATCH // 8 // data},
        **{"batching": batching, "pad_multiple": multiple, "micro_batch_tokens": tokens},
    )
    table, source = PlanTable.of([plan]), batch_source(MODEL, SPEC)
    steps = [source.step(plan, 0, step).batches for step in range(STEPS)]

    (passes,) = mean_passes(table, footprint())
    (share,) = fill_ratios(table, footprint())
    (largest,) = largest_fill(table, footprint(), np.array([GLOBAL_BATCH / data / passes]))

    counts = np.array([len(batches) for batches in steps])
    assert passes == pytest.approx(counts.mean(), rel=0.06)
    filled = seen(plan) * 8 * counts.mean() * data / GLOBAL_BATCH
    assert share == pytest.approx(filled, rel=0.06)
    assert largest * GLOBAL_BATCH / data / passes * ROW_TOKENS == pytest.approx(tokens)


@given(
    lengths=st.dictionaries(st.integers(2, ROW_TOKENS), st.just(1.0), min_size=1, max_size=6),
    multiple=st.sampled_from([1, 8, 64]),
    batching=st.sampled_from(["padded", "grouped"]),
    tensor=st.sampled_from([1, 2, 3]),
)
def test_widths_are_the_next_multiple_up_to_the_sequence_length(
    lengths: dict[int, float], multiple: int, batching: Any, tensor: int
) -> None:
    data = SPEC.data.model_copy(update={"lengths": lengths})
    source = batch_source(MODEL, SPEC.model_copy(update={"data": data}))
    layout = {"tensor": tensor, "sequence_parallel": tensor > 1, "micro_batch": 4, "data": 1}
    plan = ddp_plan(**layout, accumulation=4, batching=batching, pad_multiple=multiple)

    for step in (WORST_STEP, 0, 1):
        for batch in source.step(plan, 0, step).batches:
            longest = int(batch.inputs["attention_mask"].sum(dim=1).max())
            (width,) = {rows.shape[1] for rows in batch.inputs.values()}
            assert width % multiple == width % tensor == 0
            assert longest <= width < longest + math.lcm(multiple, tensor)
            assert width <= ROW_TOKENS


def test_the_step_on_the_longest_samples_fills_its_micro_batches() -> None:
    source = batch_source(MODEL, SPEC)
    plan = ddp_plan(
        **{"micro_batch": 8, "accumulation": 1, "batching": "grouped"},
        micro_batch_tokens=5 * ROW_TOKENS,
    )

    sizes = [
        [batch.inputs["input_ids"].numel() for batch in source.step(plan, 0, step).batches]
        for step in (WORST_STEP, 0, 1)
    ]

    assert max(sizes[0]) == 5 * ROW_TOKENS
    assert max(max(sizes[1:])) < 5 * ROW_TOKENS


def test_the_longest_sample_has_the_widest_row() -> None:
    """A sample of 70 tokens: 72, 128 and, with the three ranks that split a row, 192."""
    longest = replace(footprint(), tokens=70)
    split = {"tensor": 3, "sequence_parallel": True}
    plans = [{}, {"pad_multiple": 8}, {"pad_multiple": 64}, {"pad_multiple": 64, **split}, split]

    shares = longest_fill(PlanTable.of([ddp_plan(**knobs) for knobs in plans]), longest)

    assert (shares * 70).tolist() == pytest.approx([70, 72, 128, 192, 70])


def test_samples_of_one_length_fill_their_rows() -> None:
    plans = PlanTable.of([ddp_plan(micro_batch=2, accumulation=8, batching="padded", data=1)])
    alike = Footprint(model="any", digest="", tokens=9, depth=1, tied_parameters=0, variants=())

    assert fill_ratios(plans, alike).tolist() == [1.0]
