"""Sizes that waste a device's matrix units, with what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from orchestrator.forecast.table import ForecastTable
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.columns import PASSES, Kernels
from search_spaces.costs.plan_features import Flags, Numbers
from search_spaces.costs.time import TERMS, step_terms
from search_spaces.costs.workload import Work

WHOLE_BYTES = 128
"""What rows of a matrix are best aligned to: 64 elements of 16 bits.

Source: NVIDIA, Matrix Multiplication Background User's Guide, section 2.2, table 1 (A100 on)."""
TILE_ROWS, TILE_COLUMNS = 128.0, 256.0
"""Rows and columns of a product that one multiprocessor works on at a time.

Source: the same, section 2.3: of cuBLAS's tiles, those of 128 x 256 are most efficient."""
TELLING = 0.005  # share of a step from which on a size is pointed out
_TELLING_WAVE = 0.05  # libraries choose other tiles too: less is no news
_FEW_WAVES = 10.0  # beyond, the last wave is no more than a few per cent
_LEAST_SIZE = 16  # smaller ones are heads or samples, not sizes of matrices
_SIZES = ("rows", "columns", "inner")


@dataclass(frozen=True, slots=True, kw_only=True)
class TileWaste:
    """A size that is no good multiple.

    `size` is what one rank multiplies, `better` the next size that would not waste (None: any
    larger one wastes less), `cost` the share of a step that it would save although there is more
    to multiply, `share` the share of a step in matmuls of this size.
    """

    name: str
    size: int
    better: int | None
    share: float
    cost: float
    why: str


def wasteful_sizes(
    sized: ForecastTable,
    row: int,
    names: Mapping[int, str],
    multiprocessors: int,
    belief: Calibration,
) -> tuple[TileWaste, ...]:
    """The sizes of a plan's matmuls that waste time, the costliest first.

    What a size costs is the difference between two forecasts, with it and with the better one.

    Args:
        sized: The space that the plan is in.
        row: Its row.
        names: What sizes are called: 50257 is "vocab_size".
        multiprocessors: Of one device.
        belief: As the forecasts were made.
    """
    work = _alone(sized.work, row)
    execution = work.executions
    tokens = int(sized.footprint.tokens * execution.micro_batch[0] * execution.filled[0])
    tensor = int(work.executions.tensor[0])
    slices = {size // tensor: f"{name} / {tensor}" for size, name in names.items()}
    told = {**slices, **names, tokens: "micro_batch x tokens"}
    found = [*_misfits(work, belief, told), *_last_wave(work, belief, multiprocessors, tokens)]
    return tuple(sorted(found, key=lambda waste: -waste.cost))


def _alone(work: Work, row: int) -> Work:
    """One plan, with the matmuls and attention of its case alone."""
    one = work.take(np.array([row]))
    return _with(one, one.kernels.slot // len(PASSES) == one.rows.case[0])


def _with(work: Work, kept: Flags) -> Work:
    kernels = Kernels(**{f.name: getattr(work.kernels, f.name)[kept] for f in fields(Kernels)})
    return replace(work, kernels=kernels)


def _seconds(work: Work, belief: Calibration) -> Numbers:
    """Seconds of the only plan's step, by term."""
    terms: Numbers = belief.time_scales.scaled(step_terms(work, belief.time).seconds)[0]
    return terms


def _misfits(work: Work, belief: Calibration, names: Mapping[int, str]) -> Iterator[TileWaste]:
    kernels, now = work.kernels, _seconds(work, belief).sum()
    matmuls = kernels.is_attention == 0
    unit = WHOLE_BYTES / kernels.element_bytes[matmuls].min(initial=4.0)
    sizes = np.stack([getattr(kernels, name) for name in _SIZES], axis=1)
    for size in np.unique(sizes[matmuls]):
        better = float(np.ceil(size / unit) * unit)
        if better == size or size < _LEAST_SIZE:
            continue
        touched = matmuls & (sizes == size).any(axis=1)
        cost = float(1 - _seconds(_resized(work, touched, size, better), belief).sum() / now)
        if cost >= TELLING:
            in_matmuls = _seconds(_with(work, touched), belief)[TERMS.index("matmul")]
            yield TileWaste(
                name=names.get(int(size), "a size"),
                size=int(size),
                better=int(better),
                share=float(in_matmuls / now),
                cost=cost,
                why=f"no multiple of {unit:.0f}",
            )


def _resized(work: Work, touched: Flags, size: float, better: float) -> Work:
    """The work with another size in place of one, and as much more to multiply."""
    kernels = work.kernels
    flops, changed = kernels.flops, {}
    for name in _SIZES:
        old = getattr(kernels, name)
        here = touched & (old == size)
        changed[name] = np.where(here, better, old)
        flops = np.where(here, flops * better / size, flops)
    return replace(work, kernels=replace(kernels, flops=flops, **changed))


def _last_wave(
    work: Work, belief: Calibration, multiprocessors: int, tokens: int
) -> Iterator[TileWaste]:
    """Multiprocessors that idle while the last tiles of a product are worked on.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, section 3.2.
    """
    kernels, seconds = work.kernels, _seconds(work, belief)
    matmuls = kernels.is_attention == 0
    tiles = kernels.batch * np.ceil(kernels.rows / TILE_ROWS)
    waves = tiles * np.ceil(kernels.columns / TILE_COLUMNS) / multiprocessors
    few = matmuls & (waves < _FEW_WAVES)
    idle = np.where(few, 1 - waves / np.ceil(waves), 0.0)
    flops = np.where(matmuls, kernels.flops * _times(work), 0.0)
    in_matmuls = seconds[TERMS.index("matmul")] / seconds.sum()
    part = in_matmuls / max(flops.sum(), 1.0)
    cost = float(part * (flops * idle).sum())
    if cost >= _TELLING_WAVE:
        yield TileWaste(
            name="micro_batch x tokens",
            size=tokens,
            better=None,
            share=float(part * flops[few].sum()),
            cost=cost,
            why=f"too few tiles for {multiprocessors} multiprocessors: the last wave idles",
        )


def _times(work: Work) -> Numbers:
    """How often each kernel runs for a micro-batch, over the whole model."""
    execution, depth = work.executions, float(work.rows.depth[0])
    again = depth * float(execution.recomputed[0])
    selective = bool(execution.selective[0])
    by_pass = {
        "block_forward": depth + (0.0 if selective else again),
        "block_backward": depth,
        "block_recomputed": again if selective else 0.0,
    }
    each = np.array([by_pass.get(name, 1.0) for name in PASSES])
    found: Numbers = each[work.kernels.slot % len(PASSES)]
    return found
