"""Forecast fill ratios of micro-batches, compared with the batches that workers make."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from search_spaces.costs.footprint import Footprint
from search_spaces.costs.sequence_packing import fill_ratios
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.spec.schema import SweepSpec
from tests.plans import ddp_plan
from workers.data.batches import batch_source
from workers.models.built import BuiltModel
from workers.tracing.variants import lengths_of

ROW_TOKENS, GLOBAL_BATCH, STEPS = 96, 16, 40
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


@pytest.mark.parametrize("batching", ["padded", "grouped", "packed"])
@pytest.mark.parametrize(("micro_batch", "data"), [(1, 1), (2, 2), (4, 1), (8, 2), (16, 1)])
def test_rows_are_as_full_as_those_of_the_workers(
    batching: str, micro_batch: int, data: int
) -> None:
    plan = ddp_plan(
        micro_batch=micro_batch,
        data=data,
        accumulation=GLOBAL_BATCH // micro_batch // data,
        batching=batching,
    )

    (share,) = fill_ratios(PlanTable.of([plan]), footprint())

    assert share == pytest.approx(seen(plan), rel=0.06)


def test_samples_of_one_length_fill_their_rows() -> None:
    plans = PlanTable.of([ddp_plan(micro_batch=2, accumulation=8, batching="padded", data=1)])
    alike = Footprint(model="any", digest="", tokens=9, depth=1, tied_parameters=0, variants=())

    assert fill_ratios(plans, alike).tolist() == [1.0]
