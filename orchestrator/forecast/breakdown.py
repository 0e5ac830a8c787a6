"""Breakdown of the forecast of one plan, term by term."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.forecast.table import ForecastRow, ForecastTable
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.columns import PASSES
from search_spaces.costs.forecast import Forecasts
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.plan_features import PRECISIONS, Flags, Numbers
from search_spaces.costs.time import TERMS, step_terms
from search_spaces.costs.workload import Workload
from search_spaces.hardware.device import MatmulPrecision

QuantityName = Literal[
    "bandwidth",
    "block_backward",
    "block_parameters",
    "bubble_ratio",
    "collective_input",
    "collectives",
    "context",
    "first_stage_blocks",
    "gradient_size",
    "head_backward",
    "hidden_states",
    "input_per_block",
    "launched_operators",
    "micro_batches",
    "optimizer_state_size",
    "overlapped",
    "peak_share",
    "rank_buffers",
    "rate",
    "recomputed_blocks",
    "replicas",
    "saved_for_head",
    "saved_per_block",
    "sharding",
    "shards",
    "stages",
    "state_size",
    "tensor_ranks",
    "unfused_traffic",
    "updated_parameters",
    "weight_size",
    "work",
]
Unit = Literal["", "B", "B/parameter", "B/s", "FLOP", "FLOP/s", "parameters", "ranks", "s", "share"]
"""Sources of uncertainty other than terms: a scale that all plans share, and what none shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A named figure of a term, such as work of 3.2e15 FLOP.

    `precision` is that of the peak of which a `peak_share` is a share, None for other quantities.
    """

    name: QuantityName
    value: float
    unit: Unit
    precision: MatmulPrecision | None = None


def quantities_of_time(work: Workload, forecasts: Forecasts) -> dict[str, list[Quantity]]:
    """Returns the figures behind each term of one plan's step."""
    return _compute_quantities(work, forecasts) | _parallelism_quantities(work, forecasts)


def _compute_quantities(work: Workload, forecasts: Forecasts) -> dict[str, list[Quantity]]:
    execution, rows = work.executions, work.rows
    terms = dict(zip(TERMS, forecasts.terms[0], strict=True))
    matmuls, attention = _flops(work)
    peak = float(rows.peak_flops[0])
    precision = PRECISIONS[int(execution.precision[0])]
    traffic, launches = _step_sum(work, "traffic_bytes"), _step_sum(work, "launches")
    return {
        "matmul": [
            Quantity(name="work", value=matmuls, unit="FLOP"),
            *_rates(matmuls, terms["matmul"], peak, precision),
        ],
        "attention": [
            Quantity(name="work", value=attention, unit="FLOP"),
            *_rates(attention, terms["attention"], peak, precision),
        ],
        "operators": [
            Quantity(name="unfused_traffic", value=traffic, unit="B"),
            Quantity(name="bandwidth", value=float(rows.bandwidth[0]), unit="B/s"),
        ],
        "launches": [Quantity(name="launched_operators", value=launches, unit="")],
        "optimizer": [
            Quantity(name="updated_parameters", value=_updated(work), unit="parameters"),
            Quantity(name="state_size", value=float(execution.state_bytes[0]), unit="B/parameter"),
        ],
        "overhead": [
            Quantity(name="micro_batches", value=float(execution.accumulation[0]), unit="")
        ],
    }


def _parallelism_quantities(work: Workload, forecasts: Forecasts) -> dict[str, list[Quantity]]:
    execution, rows = work.executions, work.rows
    exchanged, exchanges = _step_sum(work, "exchanged_bytes"), _step_sum(work, "exchanges")
    bubble = float(execution.pipeline[0] - 1) / float(execution.accumulation[0])
    bubble *= float(execution.bubble[0])
    shards, replicas = int(execution.shards[0]), int(execution.data[0] // execution.shards[0])
    return {
        "tensor_collectives": [
            Quantity(name="collective_input", value=exchanged, unit="B"),
            Quantity(name="collectives", value=exchanges, unit=""),
            Quantity(name="tensor_ranks", value=float(execution.tensor[0]), unit=""),
        ],
        "data_collectives": [
            Quantity(name="shards", value=float(shards), unit=""),
            Quantity(name="replicas", value=float(replicas), unit=""),
            Quantity(
                name="overlapped",
                value=float(forecasts.hidden_seconds[0]),
                unit="s",
            ),
        ],
        "pipeline_bubble": [
            Quantity(name="stages", value=float(execution.pipeline[0]), unit=""),
            Quantity(name="micro_batches", value=float(execution.accumulation[0]), unit=""),
            Quantity(name="bubble_ratio", value=bubble, unit=""),
        ],
        "pipeline_hops": [
            Quantity(
                name="hidden_states",
                value=float(work.parts.block_input[rows.case[0]]),
                unit="B",
            )
        ],
    }


def _rates(
    work: float, seconds: float, peak: float, precision: MatmulPrecision
) -> Iterator[Quantity]:
    if seconds > 0:
        yield Quantity(name="rate", value=work / seconds, unit="FLOP/s")
        yield Quantity(
            name="peak_share", value=work / seconds / peak, unit="share", precision=precision
        )


def _flops(work: Workload) -> tuple[float, float]:
    """Returns the FLOPs of one device in a step: of matmuls, and of fused attention."""
    kernels, case = work.kernels, int(work.rows.case[0])
    of_plan = kernels.slot // len(PASSES) == case
    passes = kernels.slot[of_plan] % len(PASSES)

    def total(selected: Flags) -> float:
        weights = np.where(selected, kernels.flops[of_plan], 0.0)
        by_pass: Numbers = np.bincount(passes, weights, minlength=len(PASSES)).astype(np.float64)
        return _over_step(work, by_pass)

    return total(kernels.is_attention[of_plan] == 0), total(kernels.is_attention[of_plan] == 1)


def _step_sum(work: Workload, name: str) -> float:
    return _over_step(work, getattr(work.sums, name)[work.rows.case[0]])


def _over_step(work: Workload, by_pass: Numbers) -> float:
    """Sums amounts per pass over a step of one device, the mean one of a pipeline."""
    execution = work.executions
    amounts = dict(zip(PASSES, by_pass.tolist(), strict=True))
    ends = sum(amount for name, amount in amounts.items() if not name.startswith("block"))
    forward = amounts["block_forward"]
    recomputed = amounts["block_recomputed"] if execution.selective[0] else forward
    block = forward + amounts["block_backward"] + float(execution.recomputed[0]) * recomputed
    model = ends + float(work.rows.depth[0]) * block
    return float(model * execution.accumulation[0] / execution.pipeline[0])


def _updated(work: Workload) -> float:
    """Returns the parameters that one rank updates, the mean one of a pipeline."""
    execution, rows = work.executions, work.rows
    trained = (
        rows.embedding_trained[0] + rows.head_trained[0] - rows.tied[0]
        + rows.depth[0] * rows.block_trained[0]
    )  # fmt: skip
    shards = execution.shards[0] if execution.optimizer_sharded[0] else 1
    return float(trained / execution.pipeline[0] / shards)


def quantities_of_memory(work: Workload) -> dict[str, list[Quantity]]:
    """Returns the figures behind each category of one plan's peak."""
    execution, rows, parts = work.executions, work.rows, work.parts
    case, shards = int(rows.case[0]), float(execution.shards[0])

    def state(name: QuantityName, width: float, sharded: bool) -> list[Quantity]:
        return [
            Quantity(name=name, value=width, unit="B/parameter"),
            Quantity(name="sharding", value=shards if sharded else 1.0, unit="ranks"),
        ]

    return {
        "weights": [
            Quantity(
                name="block_parameters",
                value=float(rows.block_trained[0] + rows.block_frozen[0]),
                unit="parameters",
            ),
            Quantity(name="first_stage_blocks", value=float(execution.first_blocks[0]), unit=""),
            *state(
                "weight_size", float(execution.weight_bytes[0]), bool(execution.weights_sharded[0])
            ),
        ],
        "gradients": state(
            "gradient_size",
            float(execution.gradient_bytes[0]),
            bool(execution.gradients_sharded[0]),
        ),
        "optimizer": state(
            "optimizer_state_size",
            float(execution.state_bytes[0]),
            bool(execution.optimizer_sharded[0]),
        ),
        "gathered": [
            Quantity(
                name="weight_size", value=float(execution.gathered_bytes[0]), unit="B/parameter"
            )
        ],
        "activations": [
            Quantity(name="saved_per_block", value=float(parts.block_saved[case]), unit="B"),
            Quantity(name="input_per_block", value=float(parts.block_input[case]), unit="B"),
            Quantity(name="recomputed_blocks", value=float(execution.recomputed[0]), unit="share"),
            Quantity(name="saved_for_head", value=float(parts.head_saved[case]), unit="B"),
        ],
        "temporaries": [
            Quantity(
                name="head_backward", value=float(parts.head_backward_transient[case]), unit="B"
            ),
            Quantity(
                name="block_backward", value=float(parts.block_backward_transient[case]), unit="B"
            ),
        ],
        "buffers": [
            Quantity(name="rank_buffers", value=float(execution.buffer_bytes[0]), unit="B")
        ],
        "outside": [Quantity(name="context", value=float(rows.context_bytes[0]), unit="B")],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of a step, in seconds, or one category of the peak, in bytes.

    `amount` is the forecast, `scale` the correction by measurements that it includes (1: none), and
    `of` the figures behind it.
    """

    name: str
    amount: float
    scale: float
    of: tuple[Quantity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A plan's forecast, split into terms; `provenance` names the source of the coefficients."""

    expected: ForecastRow
    time: tuple[Term, ...]
    memory: tuple[Term, ...]
    provenance: str


def breakdown(table: ForecastTable, row: int, calibration: Calibration) -> Breakdown:
    """Breaks down the forecast of the plan in a row."""
    rows = np.array([row])
    work, forecasts = table.work.take(rows), table.forecasts.take(rows)
    uncorrected = step_terms(work, calibration.time).seconds[0]
    memory_scales = np.exp(calibration.memory_scales.logarithms)
    time_quantities = quantities_of_time(work, forecasts)
    memory_quantities = quantities_of_memory(work)
    return Breakdown(
        expected=table.row(row),
        time=tuple(
            Term(
                name=name,
                amount=float(forecasts.terms[0, at]),
                scale=_ratio(forecasts.terms[0, at], uncorrected[at]),
                of=tuple(time_quantities.get(name, ())),
            )
            for at, name in enumerate(TERMS)
        ),
        memory=tuple(
            Term(
                name=name,
                amount=float(forecasts.categories[0, at]),
                scale=float(memory_scales[at]),
                of=tuple(memory_quantities.get(name, ())),
            )
            for at, name in enumerate(CATEGORIES)
        ),
        provenance=calibration.provenance,
    )


def _ratio(corrected: float, uncorrected: float) -> float:
    return float(corrected / uncorrected) if uncorrected > 0 else 1.0
