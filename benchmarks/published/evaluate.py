"""Runs a forecaster over tables, leaving out each source in turn, with and without records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.published.forecaster import Forecaster, ForecasterWithout, RunForecasts
from benchmarks.published.metrics import kendall_tau, mean, percentage_errors, top1_regret
from benchmarks.published.sets import RankingSet, distinct, draws, ranking_sets
from benchmarks.published.values import Run, Tables

RECORDS = (1, 3, 5)
DRAWS = 3  # choices of records of each set; what they give is pooled
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run against its forecast; nan where either is missing or not judged."""

    run: Run
    speed_error: float
    memory_error: float
    p_fits: float
    forecast: bool  # whether all that was measured was forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """One ranking set; errors with records are those of the rows that were none, over all draws."""

    ranking_set: RankingSet
    tau: float | None
    tau_k3: float | None
    regret: float | None
    speed_errors: tuple[tuple[int, tuple[float, ...]], ...]  # by number of records
    memory_errors: tuple[tuple[int, tuple[float, ...]], ...]

    def errors(self, k: int, *, memory: bool = False) -> tuple[float, ...]:
        """Those with k records."""
        return dict(self.memory_errors if memory else self.speed_errors)[k]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All runs and all sets, by source in the end."""

    runs: tuple[RunResult, ...]
    sets: tuple[SetResult, ...]


def evaluate(tables: Tables, without: ForecasterWithout) -> Results:
    """Forecasts each source by the forecaster that was made without it.

    Args:
        tables: What was measured.
        without: The forecaster without a source.
    """
    run_results: list[RunResult] = []
    set_results: list[SetResult] = []
    for source in tables.sources:
        runs = tuple(run for run in tables.runs if run.source == source)
        forecaster = without(source)
        told = forecaster.forecast(runs)
        run_results += (_run_result(run, told, row) for row, run in enumerate(runs))
        set_results += (_set_result(one, runs, told, forecaster) for one in ranking_sets(runs))
    return Results(runs=tuple(run_results), sets=tuple(set_results))


def _run_result(run: Run, told: RunForecasts, row: int) -> RunResult:
    speed, memory = told.samples_per_second[row], told.memory_bytes[row]
    return RunResult(
        run=run,
        speed_error=_error(speed, speed_of(run)),
        memory_error=_error(memory, memory_of(run)),
        p_fits=float(told.p_fits[row]) if run.fit_usable else float("nan"),
        forecast=bool(
            (np.isfinite(speed) or not run.throughput_usable)
            and (np.isfinite(memory) or not run.memory_usable)
        ),
    )


def speed_of(run: Run) -> float:
    """Measured samples per second, nan where they are not judged."""
    usable = run.throughput_usable and run.samples_per_second is not None
    return run.samples_per_second or float("nan") if usable else float("nan")


def memory_of(run: Run) -> float:
    """Measured peak in bytes, nan where it is not judged."""
    usable = run.memory_usable and run.peak_memory_bytes is not None
    return run.peak_memory_bytes or float("nan") if usable else float("nan")


def _error(told: float, truth: float) -> float:
    (error,) = percentage_errors([told], [truth]) if np.isfinite(told * truth) else (float("nan"),)
    return float(error)


def _set_result(
    ranking_set: RankingSet, runs: tuple[Run, ...], told: RunForecasts, forecaster: Forecaster
) -> SetResult:
    groups = tuple(_measured_groups(runs, ranking_set.rows))
    chances = [told.samples_per_second[group[0]] for group in groups]
    truth = [_typical(runs, group) for group in groups]
    speed: list[tuple[int, tuple[float, ...]]] = []
    memory: list[tuple[int, tuple[float, ...]]] = []
    tau_k3: float | None = None
    for k in RECORDS:
        trials = tuple(_with_records(k, groups, runs, forecaster, ranking_set.noise))
        speed.append((k, tuple(error for trial in trials for error in trial.speed)))
        memory.append((k, tuple(error for trial in trials for error in trial.memory)))
        if k == 3:
            tau_k3 = mean(trial.tau for trial in trials)
    return SetResult(
        ranking_set=ranking_set,
        tau=kendall_tau(chances, truth, noise=ranking_set.noise),
        tau_k3=tau_k3,
        regret=top1_regret(chances, truth),
        speed_errors=tuple(speed),
        memory_errors=tuple(memory),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Errors and tau of the rest of a set when some of it was given as records."""

    speed: tuple[float, ...]
    memory: tuple[float, ...]
    tau: float | None


def _with_records(
    k: int,
    groups: tuple[tuple[int, ...], ...],
    runs: tuple[Run, ...],
    forecaster: Forecaster,
    noise: float,
) -> Iterator[_Trial]:
    """Records are the first rows of k configurations; repeats of a record are not judged."""
    for chosen in draws(tuple(range(len(groups))), k, times=DRAWS, seed=SEED):
        records = [runs[groups[place][0]] for place in chosen]
        rest = [group for place, group in enumerate(groups) if place not in chosen]
        rows = [row for group in rest for row in group]
        told = forecaster.calibrated(records).forecast([runs[row] for row in rows])
        place_of = {row: place for place, row in enumerate(rows)}
        yield _Trial(
            speed=_errors(told.samples_per_second, [speed_of(runs[row]) for row in rows]),
            memory=_errors(told.memory_bytes, [memory_of(runs[row]) for row in rows]),
            tau=kendall_tau(
                [told.samples_per_second[place_of[group[0]]] for group in rest],
                [_typical(runs, group) for group in rest],
                noise=noise,
            ),
        )


def _errors(told: object, truth: Sequence[float]) -> tuple[float, ...]:
    return tuple(percentage_errors(np.asarray(told, float), truth).tolist())


def _measured_groups(runs: tuple[Run, ...], rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    measured = [row for row in rows if runs[row].throughput_usable or runs[row].memory_usable]
    yield from distinct(runs, measured)


def _typical(runs: tuple[Run, ...], group: tuple[int, ...]) -> float:
    """The median throughput of repeats, nan where none is judged."""
    speeds = [speed for row in group if np.isfinite(speed := speed_of(runs[row]))]
    return float(np.median(speeds)) if speeds else float("nan")
