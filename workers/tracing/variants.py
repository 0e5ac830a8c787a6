"""Parts and blocks of a footprint, fitted to the runs of one variant."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from search_spaces.costs.footprint import (
    BlockKind,
    FusedAttention,
    Matmul,
    Part,
    Pass,
    Split,
    Variant,
)
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import ModelError
from search_spaces.plan import Plan
from search_spaces.specification.schema import DataSpec, SweepSpec
from workers.data.batches import WORST_STEP
from workers.data.collate import MicroBatch
from workers.data.dataset import load_dataset
from workers.models.built import BuiltModel, batch_source, seeded
from workers.models.tensor_plan import tensor_facts, tensor_plan
from workers.tracing.operators import FusedCall, Product
from workers.tracing.pass_costs import Grid, PartCosts, PassCosts, as_extent
from workers.tracing.recorder import EMBEDDING, HEAD

Run = dict[int, PartCosts]
Call = TypeVar("Call", Product, FusedCall)
MICRO_BATCHES = (2, 4)  # a single sample has other strides, and so other operators
_MOST_DEGREE = 64
_MOST_LENGTHS = 256  # quantiles that describe the lengths of samples


_EXTENTS = ("trained", "frozen", "quantized_bytes", "saved_bytes", "kept_bytes", "input_bytes")


class RunsDifferError(Exception):
    """Passes with different micro-batches ran different operators; the text names them."""


def fit_variant(
    runs: Sequence[Run], grid: Grid, kinds: Sequence[tuple[int, ...]], key: VariantKey
) -> Variant:
    """Fits the parts of a model as functions of micro-batch and degree.

    Blocks of different kinds with equal costs become one kind.

    Args:
        runs: Costs at each point of `grid`.
        grid: Micro-batches and degrees.
        kinds: Indices of blocks by kind; the first of each was traced, or all were.
        key: Of the variant.

    Raises:
        RunsDifferError: If the runs did different work.
    """
    blocks: dict[Part, list[int]] = {}
    for kind in kinds:
        traced = [index for index in kind if index in runs[0]]
        for index in traced:
            part = _part([run[index] for run in runs], grid)
            blocks.setdefault(part, []).extend(kind if len(traced) == 1 else (index,))
    return Variant(
        **key._asdict(),
        embedding=_part([run[EMBEDDING] for run in runs], grid),
        blocks=tuple(
            BlockKind(part=part, indices=tuple(sorted(indices))) for part, indices in blocks.items()
        ),
        head=_part([run[HEAD] for run in runs], grid),
    )


def _part(runs: Sequence[PartCosts], grid: Grid) -> Part:
    return Part(
        **{name: grid.extent([getattr(run, name) for run in runs]) for name in _EXTENTS},
        forward=_pass([run.forward for run in runs], grid),
        backward=_pass([run.backward for run in runs], grid),
        recomputed=_pass([run.recomputed for run in runs], grid),
        largest_weight=grid.extent([run.largest_weight for run in runs]).at(0, 1),
    )


def _pass(runs: Sequence[PassCosts], grid: Grid) -> Pass:
    matmuls, attentions = Counter[Matmul](), Counter[FusedAttention]()
    for products in _corresponding_calls([run.products for run in runs]):
        batch, rows, columns, inner = map(as_extent, grid.solve([one.sizes for one in products]).T)
        sizes = {"batch": batch, "rows": rows, "columns": columns, "inner": inner}
        matmuls[Matmul(**sizes, count=1, element_bytes=products[0].element_bytes)] += 1
    for calls in _corresponding_calls([run.attentions for run in runs]):
        heads, queries, keys = map(as_extent, grid.solve([call.sizes for call in calls]).T)
        one = FusedAttention(
            heads=heads,
            queries=queries,
            keys=keys,
            head_size=calls[0].head_size,
            causal=calls[0].causal,
            element_bytes=calls[0].element_bytes,
        )
        attentions[one] += 1
    return Pass(
        matmuls=tuple(replace(one, count=count) for one, count in matmuls.items()),
        attentions=tuple(replace(one, count=count) for one, count in attentions.items()),
        traffic_bytes=grid.extent([run.traffic_bytes for run in runs]),
        launches=max(run.launches for run in runs),
        exchanged_bytes=grid.extent([run.exchanged_bytes for run in runs]),
        exchanges=max(run.exchanges for run in runs),
        transient_bytes=grid.peak([run.above_bytes for run in runs]),
    )


def _corresponding_calls(runs: Sequence[tuple[Call, ...]]) -> list[tuple[Call, ...]]:
    forms = [[call.form for call in run] for run in runs]
    if any(len(form) != len(forms[0]) for form in forms):
        runs = [_alike_together(run) for run in runs]
        forms = [[call.form for call in run] for run in runs]
    if any(form != forms[0] for form in forms[1:]):
        raise RunsDifferError(f"{' and '.join(str(len(form)) for form in forms)} matrix products")
    return list(zip(*runs, strict=True))


def _alike_together(run: Sequence[Call]) -> tuple[Call, ...]:
    """Joins equal calls, as of an attention for each image of a micro-batch."""
    joined: dict[Any, Any] = {}
    for call in run:
        key, first = (call.form, call.sizes[1:]), fields(call)[0].name  # heads, or products
        count = call.sizes[0] + (joined[key].sizes[0] if key in joined else 0)
        joined[key] = replace(call, **{first: count})  # type: ignore[arg-type]
    return tuple(joined.values())


def pass_plan(micro_batch: int, tensor: int = 1, *, split: Split = "none") -> Plan:
    """Returns a plan of one pass over padded rows."""
    return Plan(
        tensor=tensor,
        sequence_parallel=split == "sequence",
        data=1,
        zero_stage=0,
        micro_batch=micro_batch,
        accumulation=1,
        batching="padded",
        checkpoint_ratio=0.0,
        attention="sdpa",
        precision="fp32",
    )


def degrees_of(model: BuiltModel) -> tuple[int, int]:
    """Returns two degrees to trace at, from which all others follow.

    They are the least degree that splits the model, and the next one. A multiple of the first is
    preferred, since rows are padded to a multiple of both. If there is only one degree, the
    other is 1. The rows of a vocabulary are split only by a degree that divides them, so that
    both degrees divide them or neither does.

    Raises:
        ModelError: If no degree splits the model; gives the reason.
    """
    own_plan = dict(model.tensor_plan)
    facts = tensor_facts(model.module, own_plan)
    if facts.refusal is not None:
        raise ModelError(facts.refusal)
    common = math.gcd(*(count for _, count in facts.divisors))
    degrees = [degree for degree in range(2, _MOST_DEGREE + 1) if common % degree == 0]
    if not degrees:
        counts = " and ".join(f"{count} {label}" for label, count in facts.divisors)
        raise ModelError(f"no tensor degree up to {_MOST_DEGREE} divides {counts}")
    rows = [
        model.module.get_submodule(name).get_parameter("weight").shape[0]
        for name, _ in tensor_plan(model.module, own_plan).vocabulary
    ]
    low = degrees[0]
    for high in sorted(degrees[1:], key=lambda degree: (degree % low != 0, degree)):
        if all((count % low == 0) == (count % high == 0) for count in rows):
            return low, high
    return 1, low


def longest_spec(model: BuiltModel, spec: SweepSpec) -> SweepSpec:
    """Returns the spec with all samples as long as its longest."""
    if not (lengths := lengths_of(model, spec)):
        return spec
    train = spec.train.model_copy(update={"sequence_length": lengths[-1]})
    return spec.model_copy(update={"data": DataSpec(), "train": train})


def lengths_of(model: BuiltModel, spec: SweepSpec) -> tuple[int, ...]:
    """Returns the lengths of the spec's samples, ascending; at most 256 quantiles of them.

    The longest is always included. Empty if all have one length, or a user's batch maker
    makes them.
    """
    if model.batch_maker is not None or model.vocab_size is None or spec.data.kind == "fixed":
        return ()
    lengths = np.sort(load_dataset(spec.data, spec.train, model.vocab_size).lengths)
    count = min(len(lengths), _MOST_LENGTHS)
    indices = ((np.arange(count) + 0.5) * len(lengths) / count).astype(int)
    return (*lengths[indices[:-1]].tolist(), int(lengths[-1]))


def batch_of(model: BuiltModel, spec: SweepSpec, plan: Plan) -> MicroBatch:
    """Returns the plan's one micro-batch, of samples of one length."""
    with seeded(spec.train.seed):
        (batch,) = batch_source(model, spec).step(plan, 0, WORST_STEP).batches
    return batch
