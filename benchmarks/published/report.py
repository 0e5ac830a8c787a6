"""Results as one object of JSON, and as a short table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.published.evaluate import RECORDS, Results, RunResult, SetResult
from benchmarks.published.metrics import WITHIN, mean, median, oom_scores, ruled_out
from benchmarks.published.values import Tables

Figures = dict[str, float | int | None]
_SHOWN = (
    "n",
    "throughput_median_ape",
    "throughput_median_ape_k3",
    "kendall_tau",
    "kendall_tau_k3",
    "top1_within_5pct",
    "memory_median_ape",
    "memory_median_ape_k3",
    "oom_precision",
    "oom_recall",
)


def report(tables: Tables, judged: Results, baseline: Results) -> dict[str, Any]:
    """One object: the forecast's figures, the baseline's under the same keys, what was skipped.

    `skipped` counts rows by reason; `described` says how many of the rows that report shape, GPU
    and configuration were; `unused` counts figures of rows that were read but are not judged.
    """
    skipped = Counter(skip.reason for skip in tables.skipped)
    missed = sum(not result.forecast for result in judged.runs)
    if missed:
        skipped["no forecast was made"] = missed
    lost = sum(skip.described for skip in tables.skipped)
    return {
        **figures_of(judged),
        "baseline": figures_of(baseline),
        "skipped": dict(skipped.most_common()),
        "described": {"rows": len(tables.runs) + lost, "skipped": lost},
        "unused": dict(tables.unused),
    }


def figures_of(results: Results) -> dict[str, Any]:
    """`overall`, `mean_over_sources`, `sources` and `sets`.

    Extrapolated runs are left out of all but a source entry of their own, which has no vote.
    """
    measured = [result for result in results.runs if not result.run.extrapolated]
    names = dict.fromkeys(result.run.source for result in measured)
    sources = {
        name: summary(
            [result for result in measured if result.run.source == name],
            [result for result in results.sets if result.ranking_set.source == name],
        )
        for name in names
    }
    voices = tuple(sources.values())
    for name in dict.fromkeys(r.run.source for r in results.runs if r.run.extrapolated):
        rows = [r for r in results.runs if r.run.extrapolated and r.run.source == name]
        sources[f"{name} (extrapolated)"] = summary(rows, [])
    return {
        "overall": summary(measured, results.sets),
        "mean_over_sources": _means(voices),
        "sources": sources,
        "sets": {
            result.ranking_set.name: summary(_rows_of(result, measured), [result])
            for result in results.sets
        },
    }


def summary(runs: Sequence[RunResult], sets: Sequence[SetResult]) -> Figures:
    """The figures of some runs and the sets among them.

    Those with records are of rows in sets, rows that were records left out.
    """
    figures: Figures = {"n": len(runs)}
    _add_errors(figures, "throughput", [run.speed_error for run in runs])
    _add_errors(figures, "memory", [run.memory_error for run in runs])
    for k in RECORDS:
        speed = [error for result in sets for error in result.errors(k)]
        memory = [error for result in sets for error in result.errors(k, memory=True)]
        _add_errors(figures, "throughput", speed, suffix=f"_k{k}")
        _add_errors(figures, "memory", memory, suffix=f"_k{k}")
    regrets = [result.regret for result in sets if result.regret is not None]
    chances = [result.p_fits for result in runs]
    oom = [result.run.oom is True for result in runs]
    precision, recall = oom_scores(chances, oom)
    return figures | {
        "kendall_tau": mean(result.tau for result in sets),
        "kendall_tau_k3": mean(result.tau_k3 for result in sets),
        "top1_regret": mean(regrets),
        "top1_within_5pct": mean(float(regret <= WITHIN) for regret in regrets),
        "oom_precision": precision,
        "oom_recall": recall,
        "fitting_ruled_out": ruled_out(chances, oom),
    }


def table_of(figures: Mapping[str, Any]) -> Table:
    """A line for all, for the sources' mean, for the baseline and for each source."""
    table = Table(title="Forecast against published measurements (each source left out in turn)")
    table.add_column("source")
    for name in _SHOWN:
        table.add_column(name.replace("_", " "), justify="right")
    lines = {
        "overall": figures["overall"],
        "mean over sources": figures["mean_over_sources"],
        "baseline, overall": figures["baseline"]["overall"],
        **figures["sources"],
    }
    for label, line in lines.items():
        table.add_row(label, *(_shown(name, line.get(name)) for name in _SHOWN))
    lost, rows = figures["described"]["skipped"], figures["described"]["rows"]
    table.caption = f"{lost} of {rows} rows that report shape, GPU and configuration were skipped"
    return table


def _add_errors(figures: Figures, what: str, errors: Sequence[float], *, suffix: str = "") -> None:
    figures[f"{what}_median_ape{suffix}"] = median(errors)
    figures[f"{what}_mean_ape{suffix}"] = mean(errors)


def _rows_of(result: SetResult, runs: Iterable[RunResult]) -> list[RunResult]:
    source, names = result.ranking_set.source, result.ranking_set.name
    wanted = names.rpartition("/")[2]
    return [r for r in runs if r.run.source == source and wanted in r.run.sets]


def _means(voices: Sequence[Figures]) -> Figures:
    keys = dict.fromkeys(key for voice in voices for key in voice)
    means: Figures = {key: mean(voice[key] for voice in voices) for key in keys if key != "n"}
    return {"n": len(voices), **means}


def _shown(name: str, value: float | int | None) -> str:
    if value is None:
        return "–"
    if name == "n":
        return str(value)
    return f"{value:.2f}" if name.startswith("kendall") else f"{100 * value:.1f} %"
