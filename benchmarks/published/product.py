"""Plimsoll's own forecast of published runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.footprints import Model, model_of, spec_of, wanted_of
from benchmarks.published.forecaster import Numbers, RunForecasts
from benchmarks.published.rows import executions_of, footprint_for, software_of
from benchmarks.published.values import Run
from search_spaces.costs.calibration import (
    CALIBRATIONS,
    Calibration,
    learned_time,
    probability_below,
    scaled_sum,
    shipped_calibration,
)
from search_spaces.costs.columns import (
    PASSES,
    CaseColumns,
    Kernels,
    PartBytes,
    PassSums,
    RowColumns,
)
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.memory import CATEGORIES, peak_bytes
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.costs.plan_features import Numbers as Columns
from search_spaces.costs.plan_features import PlanFeatures
from search_spaces.costs.time import step_terms
from search_spaces.costs.workload import Workload, workload_of
from search_spaces.hardware.catalogue import known_device
from search_spaces.hardware.device import Device
from search_spaces.hardware.names import DeviceError
from search_spaces.specification.schema import GIB
from workers.tracing.trace import trace

PRIORS = Path(__file__).with_name("priors")
Footprints = Callable[[Model, frozenset[VariantKey]], Footprint]
_NOMINAL = 0.1  # the share by which what is printed on a device may differ from what it reports
# which categories a table's figure counts: tensors alone, the allocator's segments too, or all
_COUNTED = {
    "allocated": [name not in ("outside", "fragmentation") for name in CATEGORIES],
    "unknown": [name not in ("outside",) for name in CATEGORIES],
    "reserved": [name not in ("outside",) for name in CATEGORIES],
    "device": [True for _ in CATEGORIES],
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """Runs that can be forecast, laid down as work; `rows` are their places among all."""

    work: Workload
    rows: NDArray[np.intp]
    samples: Columns
    counted: Columns  # of shape (runs, CATEGORIES): what each one's figure of memory counts
    limit_bytes: Columns


def concatenate_workloads(works: Sequence[Workload]) -> Workload:
    """Concatenates workloads, with their plans in order."""
    starts = np.cumsum([0, *(len(work.cases.tensor) for work in works)])
    shifted = [
        replace(work.kernels, slot=work.kernels.slot + start * len(PASSES))
        for work, start in zip(works, starts, strict=False)
    ]
    rows = [
        replace(work.rows, case=work.rows.case + start)
        for work, start in zip(works, starts, strict=False)
    ]
    return Workload(
        executions=PlanFeatures.joined([work.executions for work in works]),
        rows=RowColumns.joined(rows),
        cases=CaseColumns.joined([work.cases for work in works]),
        parts=PartBytes.joined([work.parts for work in works]),
        sums=PassSums.joined([work.sums for work in works]),
        kernels=Kernels.joined(shifted),
    )


def lay(runs: Sequence[Run], footprints: Footprints) -> Laid | None:
    """The work of runs; None if none of them has a device that is known."""
    works, rows = [], []
    for model, device, members in _groups(runs):
        wanted = frozenset(wanted_of(runs[row]) for row in members)
        chosen = [runs[row] for row in members]
        footprint = footprint_for(chosen[0], footprints(model, wanted))
        works.append(workload_of(footprint, device, executions_of(chosen, footprint)))
        rows += members
    if not works:
        return None
    work = concatenate_workloads(works)
    return Laid(
        work=work,
        rows=np.array(rows),
        samples=np.array([float(runs[row].layout.global_batch) for row in rows]),
        counted=np.array([_COUNTED[runs[row].memory_kind] for row in rows], dtype=float),
        limit_bytes=work.rows.device_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """The forecast by a calibration."""

    calibration: Calibration
    footprints: Footprints

    def forecast(self, runs: Sequence[Run]) -> RunForecasts:
        """Returns what the runs are expected to take; nan on devices that nobody knows."""
        speed, memory, fits, share = (np.full(len(runs), np.nan) for _ in range(4))
        parts: tuple[Numbers | None, Numbers | None] = None, None
        laid = lay(runs, self.footprints)
        if laid is not None:
            calibration, work = self.calibration, laid.work
            scales = calibration.time_scales
            step = step_terms(work, calibration.time, scales.logarithms)
            held = calibration.memory_scales.scaled(peak_bytes(work, calibration.memory).bytes)
            speed[laid.rows] = laid.samples / step.seconds.sum(axis=1)
            memory[laid.rows] = (held * laid.counted).sum(axis=1)
            whole = held.sum(axis=1)
            share[laid.rows] = whole / laid.limit_bytes
            parts = (
                _at(laid.rows, scales.parts(step.slopes), len(runs)),
                _at(laid.rows, calibration.memory_scales.parts(held), len(runs)),
            )
            fits[laid.rows] = probability_below(
                laid.limit_bytes, whole, calibration.memory_scales.deviation(held)
            )
        return RunForecasts(
            samples_per_second=speed,
            memory_bytes=memory,
            p_fits=fits,
            peak_share=share,
            rate_parts=parts[0],
            share_parts=parts[1],
        )

    def calibrated(self, records: Sequence[Run]) -> Self:
        """The same, having seen what these runs measured."""
        laid = lay(records, self.footprints)
        if laid is None:
            return self
        calibration, work = self.calibration, laid.work
        held = peak_bytes(work, calibration.memory).bytes * laid.counted
        seconds, memory = measured(records, laid)
        learned = replace(
            calibration,
            time_scales=learned_time(calibration.time_scales, work, calibration.time, seconds),
            memory_scales=calibration.memory_scales.learned(scaled_sum(held), memory),
        )
        return replace(self, calibration=learned)


def _at(rows: NDArray[np.intp], values: Columns, count: int) -> Numbers:
    """Rows of values where they belong among all, zeros elsewhere."""
    placed = np.zeros((count, values.shape[1]))
    placed[rows] = values
    return placed


def measured(runs: Sequence[Run], laid: Laid) -> tuple[Columns, Columns]:
    """Seconds of a step and bytes of the fullest device, in the order of the work; nan: unknown."""
    speed = np.array(
        [
            run.samples_per_second if run.throughput_usable and run.samples_per_second else np.nan
            for run in (runs[row] for row in laid.rows)
        ]
    )
    held = np.array(
        [
            run.peak_memory_bytes if run.memory_usable and run.peak_memory_bytes else np.nan
            for run in (runs[row] for row in laid.rows)
        ]
    )
    return laid.samples / speed, held


def _groups(runs: Sequence[Run]) -> Iterator[tuple[Model, Device, list[int]]]:
    found: dict[tuple[object, ...], list[int]] = {}
    for row, run in enumerate(runs):
        key = (model_of(run), run.device, run.device_memory_gib, software_of(run))
        found.setdefault(key, []).append(row)
    for members in found.values():
        run = runs[members[0]]
        if (device := device_of(run)) is not None:
            yield model_of(run), device, members


def device_of(run: Run) -> Device | None:
    """The catalogue's device; None if nobody knows it.

    Where a table states another memory than any device of that name has, it is a budget, and the
    device has that much.
    """
    name = run.device
    memory = run.device_memory_gib
    for spelt in ([f"{name}-{memory:g}GB"] if memory else []) + [name]:
        try:
            known = known_device(spelt)
        except DeviceError:
            continue
        stated = round(GIB * memory) if memory else known.memory_bytes
        near = abs(stated / known.memory_bytes - 1) < _NOMINAL
        return known if near else replace(known, memory_bytes=stated)
    return None


def forecaster_without(source: str) -> Ours:
    """Plimsoll's forecast with coefficients that were fitted without a source.

    Sources that took no part in fitting are forecast as users' plans are.
    """
    kept = PRIORS / f"{source}.json"
    text = kept.read_text("utf-8") if kept.is_file() else None
    calibration = shipped_calibration() if text is None else CALIBRATIONS.validate_json(text)
    return Ours(calibration=calibration, footprints=traced)


class _Traced:
    """Footprints from the worker's own code; each is traced, or read from the cache, once."""

    def __init__(self) -> None:
        self._known: dict[Model, Footprint] = {}

    def __call__(self, model: Model, wanted: frozenset[VariantKey]) -> Footprint:
        known = self._known.get(model)
        variants = known.variants if known else ()
        there = {one.key for one in variants}
        if known is None or not wanted <= there:
            known = self._known[model] = trace(spec_of(model), sorted(wanted), device="cuda")
        return known


traced = _Traced()
