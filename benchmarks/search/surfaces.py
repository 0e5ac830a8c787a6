"""Complete surfaces: every candidate of a small space with what was measured of it."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from benchmarks.published.cells import COLUMNS, Row, UnusableRowError
from benchmarks.published.forecaster import ForecasterWithout
from benchmarks.published.reading import SETS_FILE, read
from benchmarks.published.values import Run

Numbers = NDArray[np.float64]
# what a set may vary, of the columns that every table has
KNOBS = (
    *("precision", "optimizer", "sharding", "offload", "ckpt", "attn_impl", "compile"),
    *("tp", "pp", "dp", "cp_or_sp", "micro_batch", "grad_accum", "global_batch"),
)
_BESIDE = {*COLUMNS, "url_or_path", "seconds"}
_FAILED = r"run failed|r_cost=inf"
_CONTRADICTS = r"\bcheck\b|\bimplausible\b"
_NOISE = 0.01  # deviation of a logarithm where nothing is repeated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surface:
    """Candidates and their truth; arrays are of shape (candidates,).

    `rate` is nan where the candidate ran out of memory or failed. `log_rate` and `log_share` are
    forecasts that know nothing of the surface's source; None where none can be made.
    """

    name: str
    candidates: tuple[Mapping[str, Any], ...]
    distributions: Mapping[str, BaseDistribution]
    rate: Numbers
    log_rate: Numbers | None
    log_share: Numbers | None
    noise: float

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def best(self) -> float:
        """The highest throughput."""
        return float(np.nanmax(self.rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A row of a set: its place, its knobs as written, its throughput (None: infeasible)."""

    source: str
    line: int
    knobs: tuple[str, ...]
    rate: float | None


def surfaces_in(directory: Path, without: ForecasterWithout, *, least: int) -> tuple[Surface, ...]:
    """The surfaces of a directory with `least` candidates and more, of which some were measured.

    Raises:
        UserError: If the directory holds no tables.
    """
    tables = read(directory)
    runs = {(run.source, run.line): run for run in tables.runs}
    found = []
    for file in sorted(directory.glob("*.csv")):
        if file.name == SETS_FILE:
            continue
        for name, (knobs, cells) in _sets_of(file).items():
            by_knobs: dict[tuple[str, ...], list[_Cell]] = defaultdict(list)
            for cell in cells:
                by_knobs[cell.knobs].append(cell)
            measured = sum(any(c.rate for c in group) for group in by_knobs.values())
            if len(by_knobs) >= least and measured > 1:
                surface = f"{file.stem}/{name}"
                found.append(_surface(surface, knobs, by_knobs, runs, without))
    return tuple(found)


def _sets_of(file: Path) -> dict[str, tuple[tuple[str, ...], list[_Cell]]]:
    """Sets by their ids: the columns that vary in each, and its rows."""
    rows: dict[str, list[tuple[int, Row]]] = defaultdict(list)
    with file.open(encoding="utf-8", newline="") as opened:
        reader = csv.DictReader(opened)
        extra = [name for name in reader.fieldnames or () if name not in _BESIDE]
        for line, cells in enumerate(reader, start=2):
            row = Row(cells)
            if row.notes_have(_CONTRADICTS):
                continue
            for name in re.split(r"[;,\s]+", row.written("ranking_sets")):
                if name:
                    rows[name].append((line, row))
    found = {}
    for name, members in rows.items():
        varying = tuple(
            knob for knob in (*KNOBS, *extra) if len({row.text(knob) for _, row in members}) > 1
        )
        cells = [
            _Cell(
                source=file.stem,
                line=line,
                knobs=tuple(row.text(knob) for knob in varying),
                rate=rate,
            )
            for line, row in members
            if (rate := _rate(row)) is not None or _infeasible(row)
        ]
        found[name] = varying, cells
    return found


def _infeasible(row: Row) -> bool:
    return row.text("oom") == "true" or row.notes_have(_FAILED)


def _rate(row: Row) -> float | None:
    """Throughput in a unit that the rows of a set share; None if infeasible or not told."""
    if _infeasible(row):
        return None
    for column in ("samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu"):
        try:
            value = row.number(column)
        except UnusableRowError:
            continue
        if value:
            return value
    return None


def _surface(
    name: str,
    knobs: tuple[str, ...],
    by_knobs: Mapping[tuple[str, ...], list[_Cell]],
    runs: Mapping[tuple[str, int], Run],
    without: ForecasterWithout,
) -> Surface:
    groups = list(by_knobs.items())
    rates = [[cell.rate for cell in group if cell.rate] for _, group in groups]
    columns = {knob: [words[at] for words, _ in groups] for at, knob in enumerate(knobs)}
    distributions = {knob: _distribution(values) for knob, values in columns.items()}
    candidates = tuple(
        {
            knob: float(word) if isinstance(distributions[knob], FloatDistribution) else word
            for knob, word in zip(knobs, words, strict=True)
        }
        for words, _ in groups
    )
    told = [
        next((runs[key] for cell in group if (key := (cell.source, cell.line)) in runs), None)
        for _, group in groups
    ]
    log_rate, log_share = _forecasts(told, without)
    return Surface(
        name=name,
        candidates=candidates,
        distributions=distributions,
        rate=np.array([float(np.mean(values)) if values else np.nan for values in rates]),
        log_rate=log_rate,
        log_share=log_share,
        noise=_noise_of(rates),
    )


def _distribution(values: list[str]) -> BaseDistribution:
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return CategoricalDistribution(sorted(set(values)))
    low, high = min(numbers), max(numbers)
    return FloatDistribution(low, high, log=low > 0)


def _noise_of(rates: Iterable[list[float]]) -> float:
    """The deviation of the logarithm of a measurement, by what repeats differ."""
    apart = [
        np.log(value) - np.mean(np.log(values))
        for values in rates
        if len(values) > 1
        for value in values
    ]
    return max(float(np.std(apart)), _NOISE) if len(apart) > 2 else _NOISE


def _forecasts(
    runs: list[Run | None], without: ForecasterWithout
) -> tuple[Numbers | None, Numbers | None]:
    """Logarithms of throughput and of the peak over the limit; the mean where one has none."""
    known = [run for run in runs if run is not None]
    if not known:
        return None, None
    told = without(known[0].source).forecast(known)
    at = np.array([place for place, run in enumerate(runs) if run is not None])
    return tuple(
        _filled(np.log(values), at, len(runs))
        for values in (told.samples_per_second, told.peak_share)
    )  # type: ignore[return-value]


def _filled(values: Numbers, at: NDArray[np.intp], count: int) -> Numbers | None:
    finite = np.isfinite(values)
    if not finite.any():
        return None
    filled = np.full(count, float(values[finite].mean()))
    filled[at[finite]] = values[finite]
    return filled
