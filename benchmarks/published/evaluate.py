"""Judges a forecaster on tables and their ranking sets, each source left out in turn."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.published.forecaster import Forecaster, ForecasterWithout, RunForecasts
from benchmarks.published.ladders import Rung, rungs
from benchmarks.published.metrics import kendall_tau, mean, percentage_errors, top1_regret
from benchmarks.published.values import Run, Tables

NOISE = 0.03
# Source: the README of the tables: repeats in these differ by a tenth and more.
NOISY = 0.10
_NOISY_SETS = frozenset((("bigscience", "S002"), ("bigscience", "S003")))
_NOISY_SOURCES = frozenset(("nanotron",))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSet:
    """Runs that share model, devices and length; `rows` index the runs that were read."""

    name: str
    source: str
    noise: float
    rows: tuple[int, ...]


def ranking_sets(runs: tuple[Run, ...]) -> tuple[RankingSet, ...]:
    """The sets that the runs name, of two runs and more.

    Ids count within a file; one that several files use is told apart by the file's name.
    """
    members: dict[tuple[str, str], list[int]] = {}
    for row, run in enumerate(runs):
        for name in run.sets:
            members.setdefault((name, run.source), []).append(row)
    ids = [name for name, _ in members]
    return tuple(
        RankingSet(
            name=name if ids.count(name) == 1 else f"{source}/{name}",
            source=source,
            noise=noise_of(source, name),
            rows=tuple(rows),
        )
        for (name, source), rows in sorted(members.items())
        if len(rows) > 1
    )


def noise_of(source: str, name: str) -> float:
    """Returns by how much repeats of a set differ, as a share."""
    noisy = source in _NOISY_SOURCES or (source, name) in _NOISY_SETS
    return NOISY if noisy else NOISE


def distinct(runs: tuple[Run, ...], rows: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Rows by configuration: repeats stand together, in order of their first."""
    groups: dict[object, list[int]] = {}
    for row in rows:
        groups.setdefault(runs[row].configuration, []).append(row)
    return tuple(tuple(group) for group in groups.values())


def draws(rows: tuple[int, ...], k: int, *, times: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """`times` choices of k rows, never of all of them.

    Each is a prefix of a random order of its own, so that the choice of 1 is part of that of 3.
    Nothing where fewer than k + 1 rows are there.
    """
    if len(rows) <= k:
        return ()
    orders = (np.random.default_rng((seed, time)).permutation(len(rows)) for time in range(times))
    return tuple(tuple(rows[place] for place in order[:k]) for order in orders)


RECORDS = 3
DRAWS = 3  # choices of records of each set; what they give is pooled
_UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run against its forecast; nan where either is missing or not judged."""

    run: Run
    speed_error: float
    memory_error: float
    p_fits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """One ranking set; `_after` is of the rows that were no records, over all draws."""

    ranking_set: RankingSet
    tau: float | None
    tau_after: float | None
    regret: float | None
    speed_after: tuple[float, ...]
    memory_after: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All runs, all sets, and runs on several nodes."""

    runs: tuple[RunResult, ...]
    sets: tuple[SetResult, ...]
    rungs: tuple[Rung, ...]


def evaluate(tables: Tables, without: ForecasterWithout) -> Results:
    """Forecasts each source by the forecaster that was made without it.

    Args:
        tables: What was measured.
        without: The forecaster without a source.
    """
    run_results: list[RunResult] = []
    set_results: list[SetResult] = []
    scaled_out: list[Rung] = []
    for source in tables.sources:
        runs = tuple(run for run in tables.runs if run.source == source)
        forecaster = without(source)
        told = forecaster.forecast(runs)
        run_results += (_run_result(run, told, row) for row, run in enumerate(runs))
        set_results += (_set_result(one, runs, told, forecaster) for one in ranking_sets(runs))
        scaled_out += rungs(runs, told, forecaster)
    return Results(runs=tuple(run_results), sets=tuple(set_results), rungs=tuple(scaled_out))


def _run_result(run: Run, told: RunForecasts, row: int) -> RunResult:
    return RunResult(
        run=run,
        speed_error=float(abs(told.samples_per_second[row] / speed_of(run) - 1)),
        memory_error=float(abs(told.memory_bytes[row] / memory_of(run) - 1)),
        p_fits=float(told.p_fits[row]) if run.fit_usable else _UNKNOWN,
    )


def speed_of(run: Run) -> float:
    """Measured samples per second, nan where they are not judged."""
    return run.samples_per_second or _UNKNOWN if run.throughput_usable else _UNKNOWN


def memory_of(run: Run) -> float:
    """Measured peak in bytes, nan where it is not judged."""
    return run.peak_memory_bytes or _UNKNOWN if run.memory_usable else _UNKNOWN


def _set_result(
    ranking_set: RankingSet, runs: tuple[Run, ...], told: RunForecasts, forecaster: Forecaster
) -> SetResult:
    measured = [
        row for row in ranking_set.rows if runs[row].throughput_usable or runs[row].memory_usable
    ]
    groups = distinct(runs, measured)
    rates = [told.samples_per_second[group[0]] for group in groups]
    truth = [_typical(runs, group) for group in groups]
    after = tuple(_with_records(groups, runs, forecaster, ranking_set.noise))
    return SetResult(
        ranking_set=ranking_set,
        tau=kendall_tau(rates, truth, noise=ranking_set.noise),
        tau_after=mean(one.tau for one in after),
        regret=top1_regret(rates, truth),
        speed_after=tuple(error for one in after for error in one.speed),
        memory_after=tuple(error for one in after for error in one.memory),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """Errors and tau of the rest of a set when some of it was given as records."""

    speed: Sequence[float]
    memory: Sequence[float]
    tau: float | None


def _with_records(
    groups: tuple[tuple[int, ...], ...],
    runs: tuple[Run, ...],
    forecaster: Forecaster,
    noise: float,
) -> Iterator[_Rest]:
    """Records are the first rows of some configurations; repeats of a record are not judged."""
    for chosen in draws(tuple(range(len(groups))), RECORDS, times=DRAWS, seed=0):
        records = [runs[groups[place][0]] for place in chosen]
        rest = [group for place, group in enumerate(groups) if place not in chosen]
        rows = [row for group in rest for row in group]
        told = forecaster.calibrated(records).forecast([runs[row] for row in rows])
        speed, memory = ([of(runs[row]) for row in rows] for of in (speed_of, memory_of))
        yield _Rest(
            speed=percentage_errors(told.samples_per_second, speed).tolist(),
            memory=percentage_errors(told.memory_bytes, memory).tolist(),
            tau=kendall_tau(
                [told.samples_per_second[rows.index(group[0])] for group in rest],
                [_typical(runs, group) for group in rest],
                noise=noise,
            ),
        )


def _typical(runs: tuple[Run, ...], group: tuple[int, ...]) -> float:
    """The median throughput of repeats, nan where none is judged."""
    speeds = [speed for row in group if np.isfinite(speed := speed_of(runs[row]))]
    return float(np.median(speeds)) if speeds else _UNKNOWN
