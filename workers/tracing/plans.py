"""The plans and the batches of a trace."""

from __future__ import annotations

import math

import numpy as np

from search_spaces.errors import ModelError
from search_spaces.footprint import Split
from search_spaces.plan import Plan
from search_spaces.spec.schema import DataSpec, SweepSpec
from workers.data.batches import WORST_STEP, batch_source
from workers.data.collate import MicroBatch
from workers.data.dataset import load_dataset
from workers.models.built import BuiltModel
from workers.models.seeding import seeded
from workers.models.tensor_plan import tensor_facts, tensor_plan

MICRO_BATCHES = (2, 4)  # one sample alone would give other strides, and so other operators
_MOST_DEGREE = 64
_LENGTHS = 256  # quantiles that lengths of samples are kept by


def plan_of(micro_batch: int, tensor: int = 1, *, split: Split = "none", data: int = 1) -> Plan:
    """A plan of one pass over padded rows."""
    return Plan(
        tensor=tensor,
        sequence_parallel=split == "sequence",
        data=data,
        zero_stage=0 if data == 1 else 3,
        micro_batch=micro_batch,
        accumulation=1,
        batching="padded",
        checkpoint_ratio=0.0,
        attention="sdpa",
        precision="fp32",
    )


def degrees_of(model: BuiltModel) -> tuple[int, int]:
    """Two degrees to trace at, from which all others follow.

    The least that the model can be split by, and the next, if possible a multiple of it, since
    rows are filled up to what both can split; if there is but one, also 1. Rows of a vocabulary
    are split only where they divide, so that both divide them or neither does.

    Raises:
        ModelError: If no degree splits the model; says why.
    """
    given = dict(model.tensor_plan)
    facts = tensor_facts(model.module, given)
    if facts.refusal is not None:
        raise ModelError(facts.refusal)
    common = math.gcd(*(count for _, count in facts.divisors))
    fitting = [degree for degree in range(2, _MOST_DEGREE + 1) if common % degree == 0]
    if not fitting:
        counts = " and ".join(f"{count} {label}" for label, count in facts.divisors)
        raise ModelError(f"no tensor degree up to {_MOST_DEGREE} divides {counts}")
    rows = [
        model.module.get_submodule(name).get_parameter("weight").shape[0]
        for name, _ in tensor_plan(model.module, given).vocabulary
    ]
    low = fitting[0]
    for high in sorted(fitting[1:], key=lambda degree: (degree % low != 0, degree)):
        if all((count % low == 0) == (count % high == 0) for count in rows):
            return low, high
    return 1, low


def longest_spec(model: BuiltModel, spec: SweepSpec) -> SweepSpec:
    """The spec with samples that are all as long as its longest."""
    if not (lengths := lengths_of(model, spec)):
        return spec
    train = spec.train.model_copy(update={"sequence_length": lengths[-1]})
    return spec.model_copy(update={"data": DataSpec(), "train": train})


def lengths_of(model: BuiltModel, spec: SweepSpec) -> tuple[int, ...]:
    """Lengths of the spec's samples, ascending; of many, those at evenly spaced quantiles.

    The longest is always there. Empty where all are of one length, or a batch maker of the user's
    makes them.
    """
    if model.batch_maker is not None or model.vocab_size is None or spec.data.kind == "fixed":
        return ()
    lengths = np.sort(load_dataset(spec.data, spec.train, model.vocab_size).lengths)
    count = min(len(lengths), _LENGTHS)
    places = ((np.arange(count) + 0.5) * len(lengths) / count).astype(int)
    return (*lengths[places[:-1]].tolist(), int(lengths[-1]))


def batch_of(model: BuiltModel, spec: SweepSpec, plan: Plan) -> MicroBatch:
    """The plan's one micro-batch, of samples of one length."""
    with seeded(spec.train.seed):
        (batch,) = batch_source(model, spec).step(plan, 0, WORST_STEP).batches
    return batch
