"""The arithmetic of one plan, term by term."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orchestrator.forecast.table import Expected, ForecastTable, expected
from search_spaces.costs.calibration import Calibration, Scales
from search_spaces.costs.columns import PASSES
from search_spaces.costs.forecast import Forecasts
from search_spaces.costs.memory import CATEGORIES, peak_bytes
from search_spaces.costs.plan_features import PRECISIONS, STACKS, Flags, Numbers
from search_spaces.costs.time import TERMS, step_terms
from search_spaces.costs.workload import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure that a term consists of, such as 3.2e15 "FLOP" of "matmuls"."""

    name: str
    value: float
    unit: str


def quantities_of_time(work: Work, told: Forecasts) -> dict[str, list[Quantity]]:
    """What each term of one plan's step consists of."""
    execution, rows = work.executions, work.rows
    terms = dict(zip(TERMS, told.terms[0], strict=True))
    matmuls, attention = _flops(work)
    sums = {
        name: _over_step(work, getattr(work.sums, name)[rows.case[0]])
        for name in ("traffic_bytes", "launches", "exchanged_bytes", "exchanges")
    }
    peak = float(rows.peak_flops[0])
    precision = PRECISIONS[int(execution.precision[0])]
    bubble = float(execution.pipeline[0] - 1) / float(
        execution.accumulation[0] * execution.chunks[0]
    )
    shards, replicas = int(execution.shards[0]), int(execution.data[0] // execution.shards[0])
    return {
        "matmul": [
            Quantity(name="work of a device", value=matmuls, unit="FLOP"),
            *_rates(matmuls, terms["matmul"], peak, precision, "FLOP/s"),
        ],
        "attention": [
            Quantity(name="work of a device", value=attention, unit="FLOP"),
            *_rates(attention, terms["attention"], peak, precision, "FLOP/s"),
        ],
        "operators": [
            Quantity(
                name="read and written before any fusing", value=sums["traffic_bytes"], unit="B"
            ),
            Quantity(name="peak", value=float(rows.bandwidth[0]), unit="B/s"),
        ],
        "launches": [Quantity(name="operators launched", value=sums["launches"], unit="")],
        "tensor_collectives": [
            Quantity(name="given into collectives", value=sums["exchanged_bytes"], unit="B"),
            Quantity(name="collectives", value=sums["exchanges"], unit=""),
            Quantity(name="ranks", value=float(execution.tensor[0]), unit=""),
        ],
        "data_collectives": [
            Quantity(name="ranks that share a state", value=float(shards), unit=""),
            Quantity(name="replicas", value=float(replicas), unit=""),
            Quantity(name="hidden behind computing", value=float(told.hidden_seconds[0]), unit="s"),
        ],
        "pipeline_bubble": [
            Quantity(name="stages", value=float(execution.pipeline[0]), unit=""),
            Quantity(name="micro-batches", value=float(execution.accumulation[0]), unit=""),
            Quantity(name="(stages - 1) / micro-batches", value=bubble, unit=""),
        ],
        "pipeline_hops": [
            Quantity(
                name="hidden states of a micro-batch",
                value=float(work.parts.block_input[rows.case[0]]),
                unit="B",
            )
        ],
        "optimizer": [
            Quantity(name="parameters updated", value=_trained(work), unit="parameters"),
            Quantity(name="state", value=float(execution.state_bytes[0]), unit="B/parameter"),
        ],
        "overhead": [
            Quantity(name="micro-batches", value=float(execution.accumulation[0]), unit="")
        ],
    }


def _rates(work: float, seconds: float, peak: float, of: str, unit: str) -> Iterator[Quantity]:
    if seconds > 0:
        yield Quantity(name="rate", value=work / seconds, unit=unit)
        yield Quantity(name=f"of the {of} peak", value=work / seconds / peak, unit="share")


def _flops(work: Work) -> tuple[float, float]:
    """FLOPs of one device in a step: of matmuls, of fused attention."""
    kernels, case = work.kernels, int(work.rows.case[0])
    mine = kernels.slot // len(PASSES) == case
    which = kernels.slot[mine] % len(PASSES)

    def summed(chosen: Flags) -> float:
        weights = np.where(chosen, kernels.flops[mine], 0.0)
        by_pass: Numbers = np.bincount(which, weights, minlength=len(PASSES)).astype(np.float64)
        return _over_step(work, by_pass)

    return summed(kernels.is_attention[mine] == 0), summed(kernels.is_attention[mine] == 1)


def _over_step(work: Work, by_pass: Numbers) -> float:
    """What a pass does each time, over a whole step of one device; of a pipeline the mean one."""
    execution = work.executions
    at = dict(zip(PASSES, by_pass.tolist(), strict=True))
    ends = sum(value for name, value in at.items() if not name.startswith("block"))
    again = at["block_recomputed"] if execution.selective[0] else at["block_forward"]
    block = at["block_forward"] + at["block_backward"] + float(execution.recomputed[0]) * again
    whole = ends + float(work.rows.depth[0]) * block
    return float(whole * execution.accumulation[0] / execution.pipeline[0])


def _trained(work: Work) -> float:
    """Parameters that one rank updates; of a pipeline the mean one."""
    execution, rows = work.executions, work.rows
    whole = (
        rows.embedding_trained[0] + rows.head_trained[0] - rows.tied[0]
        + rows.depth[0] * rows.block_trained[0]
    )  # fmt: skip
    split = execution.shards[0] if execution.optimizer_sharded[0] else 1
    return float(whole / execution.pipeline[0] / split)


def quantities_of_memory(work: Work) -> dict[str, list[Quantity]]:
    """What each category of one plan's peak consists of."""
    execution, rows, parts = work.executions, work.rows, work.parts
    case, shards = int(rows.case[0]), float(execution.shards[0])

    def state(width: float, sharded: bool, kind: str) -> list[Quantity]:
        return [
            Quantity(name=f"each {kind}", value=width, unit="B/parameter"),
            Quantity(name="split among", value=shards if sharded else 1.0, unit="ranks"),
        ]

    return {
        "weights": [
            Quantity(
                name="parameters of a block",
                value=float(rows.block_trained[0] + rows.block_frozen[0]),
                unit="parameters",
            ),
            Quantity(
                name="blocks of the first stage", value=float(execution.first_blocks[0]), unit=""
            ),
            *state(float(execution.weight_bytes[0]), bool(execution.weights_sharded[0]), "weight"),
        ],
        "gradients": state(
            float(execution.gradient_bytes[0]), bool(execution.gradients_sharded[0]), "gradient"
        ),
        "optimizer": state(
            float(execution.state_bytes[0]), bool(execution.optimizer_sharded[0]), "state"
        ),
        "gathered": [
            Quantity(
                name="each weight", value=float(execution.gathered_bytes[0]), unit="B/parameter"
            )
        ],
        "activations": [
            Quantity(name="saved by a block", value=float(parts.block_saved[case]), unit="B"),
            Quantity(name="input of a block", value=float(parts.block_input[case]), unit="B"),
            Quantity(name="blocks recomputed", value=float(execution.recomputed[0]), unit="share"),
            Quantity(name="saved by the head", value=float(parts.head_saved[case]), unit="B"),
        ],
        "temporaries": [
            Quantity(
                name="head, backward", value=float(parts.head_backward_transient[case]), unit="B"
            ),
            Quantity(
                name="block, backward", value=float(parts.block_backward_transient[case]), unit="B"
            ),
        ],
        "buffers": [Quantity(name="of one rank", value=float(execution.buffer_bytes[0]), unit="B")],
        "outside": [Quantity(name="context", value=float(rows.context_bytes[0]), unit="B")],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Seconds of a step, or bytes at the peak, of one kind.

    `amount` is what is expected, `scale` by what measurements corrected it (1: nothing did);
    `of` is what it consists of.
    """

    name: str
    amount: float
    scale: float
    of: tuple[Quantity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A plan's forecast with where each figure comes from.

    `time_doubts` and `memory_doubts` say what makes the intervals as wide as they are: shares of
    the variance of the logarithm, largest first.
    """

    expected: Expected
    time: tuple[Term, ...]
    memory: tuple[Term, ...]
    time_doubts: tuple[tuple[str, float], ...]
    memory_doubts: tuple[tuple[str, float], ...]
    provenance: str


def breakdown(sized: ForecastTable, row: int, belief: Calibration) -> Breakdown:
    """The arithmetic of the plan in a row."""
    one = np.array([row])
    work, told = sized.work.take(one), sized.forecasts.take(one)
    steps, held = step_terms(work, belief.time), peak_bytes(work, belief.memory)
    times, sizes = belief.time_scales.mean, belief.memory_scales.mean
    own = bool(work.executions.stack[0] == STACKS.index("torch"))
    seconds_of, bytes_of = quantities_of_time(work, told), quantities_of_memory(work)
    return Breakdown(
        expected=expected(sized, row),
        time=tuple(
            Term(
                name=name,
                amount=float(told.terms[0, at]),
                scale=float(np.exp(times[0] + times[at + 1])),
                of=tuple(seconds_of.get(name, ())),
            )
            for at, name in enumerate(TERMS)
        ),
        memory=tuple(
            Term(
                name=name,
                amount=float(told.categories[0, at]),
                scale=float(np.exp(sizes[0] + sizes[at + 1])),
                of=tuple(bytes_of.get(name, ())),
            )
            for at, name in enumerate(CATEGORIES)
        ),
        time_doubts=_doubts(belief.time_scales, steps.seconds[0], TERMS),
        memory_doubts=_doubts(
            belief.memory_scales, held.bytes[0], CATEGORIES, belief.own_sureness if own else None
        ),
        provenance=belief.provenance,
    )


def _doubts(
    scales: Scales, terms: Numbers, names: tuple[str, ...], sureness: float | None = None
) -> tuple[tuple[str, float], ...]:
    """Shares of the variance of the sum's logarithm: by term, in common, and of single plans."""
    shares, misfit = scales.doubts(terms, sureness)
    found = dict(zip(("what all plans have in common", *names), shares, strict=True))
    found["one plan from the next"] = misfit
    told = [(name, float(share)) for name, share in found.items() if share >= 0.01]
    return tuple(sorted(told, key=lambda entry: -entry[1]))
