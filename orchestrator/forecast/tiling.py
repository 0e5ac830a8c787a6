"""Tile quantization: matrix sizes that waste a device's matrix units, and their cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from orchestrator.forecast.table import ForecastTable
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.columns import PASSES, Kernels
from search_spaces.costs.plan_features import Flags, Numbers
from search_spaces.costs.time import TERMS, step_terms
from search_spaces.costs.workload import Workload

ALIGNMENT_BYTES = 128
"""Best alignment of the rows of a matrix: 64 elements of 16 bits.

Source: NVIDIA, Matrix Multiplication Background User's Guide, section 2.2, table 1 (A100 on)."""
TILE_ROWS, TILE_COLUMNS = 128.0, 256.0
"""Rows and columns of the tile of a product that one multiprocessor computes at a time.

Source: the same guide, section 2.3: 128 x 256 are the most efficient tiles of cuBLAS."""
MIN_COST = 0.005  # least cost to report, as a share of a step
_MIN_WAVE_COST = 0.05  # least cost of a partial wave: libraries also choose other tiles
_FEW_WAVES = 10.0  # with more of them, the last wave costs a few percent at most
_MIN_SIZE = 16  # smaller ones count heads or samples
_SIZES = ("rows", "columns", "inner")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOrigin:
    """Origin of a matrix size; unknown if it is neither of tokens nor of fields.

    `tokens` is True for the tokens of a micro-batch. `fields` are those of the model's
    configuration that hold the size of all `tensor` ranks together.
    """

    tokens: bool = False
    fields: tuple[str, ...] = ()
    tensor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Misaligned:
    """The size is not a multiple of the best alignment, in elements."""

    kind: Literal["misaligned"] = "misaligned"
    alignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialWave:
    """Products have so few tiles that some multiprocessors idle in the last wave."""

    kind: Literal["partial_wave"] = "partial_wave"
    multiprocessors: int


TileWasteCause = Misaligned | PartialWave


@dataclass(frozen=True, slots=True, kw_only=True)
class TileWaste:
    """A matrix size that suffers from tile quantization.

    `size` is the size on one rank, `better` the next efficient size (None: any larger one is more
    efficient). `cost` is the share of a step that the better size would save, despite the larger
    product. `share` is the share of a step in matmuls of this size.
    """

    origin: SizeOrigin
    size: int
    better: int | None
    share: float
    cost: float
    cause: TileWasteCause


def tile_waste(
    sized: ForecastTable,
    row: int,
    names: Mapping[int, tuple[str, ...]],
    multiprocessors: int,
    calibration: Calibration,
) -> tuple[TileWaste, ...]:
    """Returns the inefficient matmul sizes of a plan, the costliest first.

    The cost of a size is the difference between the forecasts with it and with the better size.

    Args:
        sized: Forecasts of the space with the plan.
        row: The plan's row.
        names: Fields of the model's configuration by size, such as "vocab_size" for 50257.
        multiprocessors: Number in one device.
        calibration: The calibration that the forecasts were made with.
    """
    work = _work_of_row(sized.work, row)
    execution = work.executions
    tokens = int(sized.footprint.tokens * execution.micro_batch[0] * execution.filled[0])
    tensor = int(work.executions.tensor[0])
    slices = {
        size // tensor: SizeOrigin(fields=fields, tensor=tensor) for size, fields in names.items()
    }
    whole = {size: SizeOrigin(fields=fields) for size, fields in names.items()}
    origins = {**slices, **whole, tokens: SizeOrigin(tokens=True)}
    wastes = [
        *_misaligned(work, calibration, origins),
        *_partial_wave(work, calibration, multiprocessors, tokens),
    ]
    return tuple(sorted(wastes, key=lambda waste: -waste.cost))


def _work_of_row(work: Workload, row: int) -> Workload:
    plan = work.take(np.array([row]))
    return _with_kernels(plan, plan.kernels.slot // len(PASSES) == plan.rows.case[0])


def _with_kernels(work: Workload, selected: Flags) -> Workload:
    columns = {f.name: getattr(work.kernels, f.name)[selected] for f in dataclasses.fields(Kernels)}
    kernels = Kernels(**columns)
    return replace(work, kernels=kernels)


def _term_seconds(work: Workload, calibration: Calibration) -> Numbers:
    scales = calibration.time_scales
    terms: Numbers = scales.scaled(step_terms(work, calibration.time).seconds)[0]
    return terms


def _misaligned(
    work: Workload, calibration: Calibration, origins: Mapping[int, SizeOrigin]
) -> Iterator[TileWaste]:
    kernels, total = work.kernels, _term_seconds(work, calibration).sum()
    matmuls = kernels.is_attention == 0
    unit = ALIGNMENT_BYTES / kernels.element_bytes[matmuls].min(initial=4.0)
    sizes = np.stack([getattr(kernels, name) for name in _SIZES], axis=1)
    for size in np.unique(sizes[matmuls]):
        better = float(np.ceil(size / unit) * unit)
        if better == size or size < _MIN_SIZE:
            continue
        affected = matmuls & (sizes == size).any(axis=1)
        resized = _resized(work, affected, size, better)
        cost = float(1 - _term_seconds(resized, calibration).sum() / total)
        if cost >= MIN_COST:
            affected_work = _with_kernels(work, affected)
            in_matmuls = _term_seconds(affected_work, calibration)[TERMS.index("matmul")]
            yield TileWaste(
                origin=origins.get(int(size), SizeOrigin()),
                size=int(size),
                better=int(better),
                share=float(in_matmuls / total),
                cost=cost,
                cause=Misaligned(alignment=round(unit)),
            )


def _resized(work: Workload, affected: Flags, size: float, better: float) -> Workload:
    """Replaces a size by a better one, with FLOPs in proportion."""
    kernels = work.kernels
    flops, columns = kernels.flops, {}
    for name in _SIZES:
        column = getattr(kernels, name)
        replaced = affected & (column == size)
        columns[name] = np.where(replaced, better, column)
        flops = np.where(replaced, flops * better / size, flops)
    return replace(work, kernels=replace(kernels, flops=flops, **columns))


def _partial_wave(
    work: Workload, calibration: Calibration, multiprocessors: int, tokens: int
) -> Iterator[TileWaste]:
    """Yields the cost of multiprocessors that idle during the last wave of tiles of a product.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, section 3.2.
    """
    kernels, seconds = work.kernels, _term_seconds(work, calibration)
    matmuls = kernels.is_attention == 0
    tiles = kernels.batch * np.ceil(kernels.rows / TILE_ROWS)
    waves = tiles * np.ceil(kernels.columns / TILE_COLUMNS) / multiprocessors
    few = matmuls & (waves < _FEW_WAVES)
    idle = np.where(few, 1 - waves / np.ceil(waves), 0.0)
    flops = np.where(matmuls, kernels.flops * _repetitions(work), 0.0)
    in_matmuls = seconds[TERMS.index("matmul")] / seconds.sum()
    share_per_flop = in_matmuls / max(flops.sum(), 1.0)
    cost = float(share_per_flop * (flops * idle).sum())
    if cost >= _MIN_WAVE_COST:
        yield TileWaste(
            origin=SizeOrigin(tokens=True),
            size=tokens,
            better=None,
            share=float(share_per_flop * flops[few].sum()),
            cost=cost,
            cause=PartialWave(multiprocessors=multiprocessors),
        )


def _repetitions(work: Workload) -> Numbers:
    """Returns how often each kernel runs for a micro-batch, over the whole model."""
    execution, depth = work.executions, float(work.rows.depth[0])
    recomputed = depth * float(execution.recomputed[0])
    selective = bool(execution.selective[0])
    by_pass = {
        "block_forward": depth + (0.0 if selective else recomputed),
        "block_backward": depth,
        "block_recomputed": recomputed if selective else 0.0,
    }
    counts = np.array([by_pass.get(name, 1.0) for name in PASSES])
    repetitions: Numbers = counts[work.kernels.slot % len(PASSES)]
    return repetitions
