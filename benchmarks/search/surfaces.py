"""Complete surfaces: every candidate of a small space with what was measured of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from benchmarks.published.cells import Row
from benchmarks.published.forecaster import ForecasterWithout
from benchmarks.search.columns import knobs_of
from benchmarks.search.forecasts import forecasts_of
from benchmarks.search.tables import Entry, Grid, grids_in, number
from orchestrator.search.encoding import feature_columns

Numbers = NDArray[np.float64]
_NOISE = 0.01  # deviation of a logarithm where nothing is repeated
TYPICAL_HALF_WIDTH = 0.025  # of a trial's 95 % interval, as a share of its throughput
_FEW_REPEATS = 3  # that many deviations tell a noise
# What a trial takes where a table does not say: start and building, then steps; a failure is soon
START_SECONDS, STEPS, FAILURE_SECONDS = 15.0, 12, 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measurement of a candidate.

    `rate` is None if it ran out of memory or failed. `log_share` is the logarithm of its peak over
    the memory limit, or of what it wanted if that is more; None where nobody knows. `half_width` is
    from the rate to the upper end of the trial's own 95 % interval, as a share of the rate. `round`
    counts from 1 in a recording with rounds, and is 0 elsewhere; `began` is in seconds.
    """

    rate: float | None
    log_share: float | None
    seconds: float
    half_width: float = TYPICAL_HALF_WIDTH
    round: int = 0
    began: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The setup of a surface, as far as its table says; None where it does not."""

    parameters: float | None
    limit_gib: float | None
    gpus: float | None
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surface:
    """Candidates and their truth; arrays are of shape (candidates,).

    `trials` holds the repeats of each candidate, `rate` their mean; it is nan where the candidate
    ran out of memory or failed. `log_rate` and `log_share` are forecasts that know nothing of the
    surface's source; None where none can be made. The parts say how far
    each of their coefficients may move them. `told_by` says who forecasts.
    """

    name: str
    candidates: tuple[Mapping[str, Any], ...]
    distributions: Mapping[str, BaseDistribution]
    trials: tuple[tuple[Trial, ...], ...]
    rate: Numbers
    log_rate: Numbers | None
    log_share: Numbers | None
    told_by: str
    noise: float
    setup: Setup
    rate_parts: Numbers | None = None
    share_parts: Numbers | None = None

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def best(self) -> float:
        """The highest throughput."""
        return float(np.nanmax(self.rate))

    def features(self) -> Numbers:
        """The candidates as points, as the product's search has them."""
        columns = (
            column
            for knob, distribution in self.distributions.items()
            for column in feature_columns(distribution, self.column(knob))
        )
        return np.stack([*columns], axis=1)

    def column(self, knob: str) -> tuple[Any, ...]:
        """A knob's value of each candidate."""
        return tuple(candidate[knob] for candidate in self.candidates)


def within(surface: Surface, quantile: float) -> Surface:
    """The surface with a stated peak, this quantile of the measured peaks, as its memory limit.

    Candidates with a median peak above it count as out of memory.
    """
    held = np.array([held_share(trials) for trials in surface.trials])
    limit = float(np.nanquantile(held, quantile))

    def told(trial: Trial, *, fits: bool) -> Trial:
        share = None if trial.log_share is None else trial.log_share - limit
        contradicts = share is not None and (share <= 0) != fits
        rate = trial.rate if fits else None
        return replace(trial, rate=rate, log_share=None if contradicts else share)

    fitting = ~np.isnan(surface.rate) & ~(held > limit)
    return replace(
        surface,
        name=f"{surface.name}, peak at {quantile:.0%}",
        trials=tuple(
            tuple(told(trial, fits=bool(fits)) for trial in trials)
            for trials, fits in zip(surface.trials, fitting, strict=True)
        ),
        rate=np.where(fitting, surface.rate, np.nan),
        log_share=None if surface.log_share is None else surface.log_share - limit,
    )


def held_share(trials: Sequence[Trial]) -> float:
    """The median of a candidate's measured peaks over the limit, as a logarithm."""
    shares = [one.log_share for one in trials if one.log_share is not None and one.rate is not None]
    return float(np.median(shares)) if shares else np.nan


def surfaces_in(place: Path, without: ForecasterWithout, *, least: int) -> tuple[Surface, ...]:
    """The surfaces of a folder, or of one table, that have `least` candidates or more.

    Two of them were measured, at least. Where no surface is so large, all are taken.

    Raises:
        SurfacesError: If there are no tables.
    """
    found = []
    for grid in grids_in(place):
        columns = knobs_of(grid.name, [entry.row for entry in grid.entries], grid.header)
        groups = _candidates(grid, columns)
        if sum(any(entry.rate for entry in group) for group in groups.values()) > 1:
            found.append((grid, tuple(columns), groups))
    large = [part for part in found if len(part[2]) >= least]
    return tuple(_surface(*part, without) for part in large or found)


def _candidates(
    grid: Grid, columns: Mapping[str, Sequence[str]]
) -> dict[tuple[str, ...], list[Entry]]:
    """Rows by their knobs; where some repeats ran and others did not, those that are more."""
    groups: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for place, entry in enumerate(grid.entries):
        groups[tuple(cells[place] for cells in columns.values())].append(entry)
    return {key: _of_one_kind(group) for key, group in groups.items()}


def _of_one_kind(group: list[Entry]) -> list[Entry]:
    ran = [entry for entry in group if entry.rate is not None]
    return ran if 2 * len(ran) > len(group) else [e for e in group if e.rate is None]


def _surface(
    grid: Grid,
    knobs: tuple[str, ...],
    groups: Mapping[tuple[str, ...], list[Entry]],
    without: ForecasterWithout,
) -> Surface:
    columns = {knob: [words[at] for words in groups] for at, knob in enumerate(knobs)}
    distributions = {knob: _distribution(values) for knob, values in columns.items()}
    candidates = tuple(
        {
            knob: float(word) if isinstance(distributions[knob], FloatDistribution) else word
            for knob, word in zip(knobs, words, strict=True)
        }
        for words in groups
    )
    rates = [[entry.rate for entry in group if entry.rate] for group in groups.values()]
    mean = np.array([float(np.mean(values)) if values else np.nan for values in rates])
    usual = STEPS * float(np.nanmax(mean))
    trials = tuple(
        tuple(_trial(entry, grid.unit, usual) for entry in group) for group in groups.values()
    )
    told = forecasts_of(grid, [group[0] for group in groups.values()], without)
    row = grid.entries[0].row
    return Surface(
        name=grid.name,
        candidates=candidates,
        distributions=distributions,
        trials=trials,
        rate=mean,
        log_rate=told.log_rate,
        log_share=told.log_share,
        told_by=told.told_by,
        noise=_noise_of(rates),
        setup=Setup(
            parameters=number(row, "n_params"),
            limit_gib=number(row, "gpu_mem_gib"),
            gpus=number(row, "n_gpus"),
            precision=row.text("precision"),
        ),
        rate_parts=told.rate_parts,
        share_parts=told.share_parts,
    )


def _trial(entry: Entry, unit: str, usual: float) -> Trial:
    """Returns the measurement of a row.

    A peak above the limit contradicts that it ran: the two were counted differently, and nothing
    is told of the peak.
    """
    row, limit = entry.row, number(entry.row, "gpu_mem_gib")
    held = number(row, "wanted_gib" if entry.rate is None else "peak_mem_gib")
    share = None if held is None or limit is None else float(np.log(held / limit))
    began = number(row, "began")
    if share is not None and (share <= 0) != (entry.rate is not None):
        share = None
    return Trial(
        rate=entry.rate,
        log_share=share,
        seconds=number(row, "trial_seconds") or _modelled_seconds(entry, unit, usual),
        half_width=_half_width(row),
        round=int(number(row, "repeat") or 0) if began else 0,
        began=began or 0.0,
    )


def _half_width(row: Row) -> float:
    """The half-width of a row's interval, a typical one where the table has no intervals."""
    rate, high = number(row, "samples_per_s"), number(row, "samples_per_s_high")
    return TYPICAL_HALF_WIDTH if rate is None or high is None else max(high / rate - 1, 0.0)


def _modelled_seconds(entry: Entry, unit: str, usual: float) -> float:
    """Seconds of a trial by model.

    Args:
        entry: The row.
        unit: Which column its throughput is of.
        usual: Seconds of the steps of the best candidate times its throughput, where the table
            does not say how large a step is: each of the best one's steps takes a second.
    """
    if entry.rate is None:
        return FAILURE_SECONDS
    row, work = entry.row, None
    batch = number(row, "global_batch")
    if batch and unit == "samples_per_s":
        work = STEPS * batch
    gpus, length = number(row, "n_gpus"), number(row, "seq_len")
    if batch and gpus and length and unit == "tokens_per_s_per_gpu":
        work = STEPS * batch * length / gpus
    return START_SECONDS + (work or usual) / entry.rate


def _distribution(values: list[str]) -> BaseDistribution:
    try:
        numbers = [float(value) for value in values]
    except ValueError:  # words
        numbers = [np.nan]
    if not np.isfinite(numbers).all():
        return CategoricalDistribution(sorted(set(values)))
    low, high = min(numbers), max(numbers)
    return FloatDistribution(low, high, log=low > 0)


def _noise_of(rates: Iterable[list[float]]) -> float:
    """The deviation of the logarithm of a measurement, by what repeats differ."""
    apart, free = 0.0, 0
    for values in rates:
        logs = np.log(values)
        apart += float(((logs - logs.mean()) ** 2).sum()) if len(values) else 0.0
        free += max(len(values) - 1, 0)
    return max((apart / free) ** 0.5, _NOISE) if free >= _FEW_REPEATS else _NOISE
