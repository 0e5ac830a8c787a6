"""Results as one object of JSON."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.published.evaluate import RECORDS, Results, RunResult, SetResult
from benchmarks.published.metrics import WITHIN, mean, median, oom_scores
from benchmarks.published.values import Layout, Tables

Figures = dict[str, float | int | None]
_GROUPS: Mapping[str, Callable[[Layout], bool]] = {
    "context_ranks": lambda layout: layout.context > 1,
    "expert_ranks": lambda layout: layout.experts > 1,
    "plain": lambda layout: layout.loss == "plain",
    "in_place": lambda layout: layout.loss == "in_place",
    "linear": lambda layout: layout.loss == "linear",
}
_AFTER = f"_k{RECORDS}"  # of what is forecast after records


def report(tables: Tables, judged: Results, baseline: Results) -> dict[str, Any]:
    """The forecast's figures, the baseline's under the same keys, rows skipped by reason."""
    skipped = Counter(skip.reason for skip in tables.skipped)
    return {
        **figures_of(judged),
        "baseline": figures_of(baseline),
        "skipped": dict(skipped.most_common()),
    }


def figures_of(results: Results) -> dict[str, Any]:
    """Figures overall, by source and of groups of runs, without extrapolated runs.

    Groups are runs with context ranks, with expert ranks, and by loss: plain, in_place (fused
    kernels over whole logits) or linear (never whole logits).
    """
    measured = [result for result in results.runs if not result.run.extrapolated]
    sources = {
        name: summary(
            [result for result in measured if result.run.source == name],
            [result for result in results.sets if result.ranking_set.source == name],
        )
        for name in dict.fromkeys(result.run.source for result in measured)
    }
    groups = {
        name: _group(of)
        for name, belongs in _GROUPS.items()
        if (of := [result for result in measured if belongs(result.run.layout)])
    }
    overall = summary(measured, results.sets)
    medians: Figures = {
        key: median(voice[key] for voice in sources.values()) for key in overall if key != "n"
    }
    return {
        "overall": overall,
        "median_over_sources": {"n": len(sources), **medians},
        "sources": sources,
        "groups": groups,
        "scale_out": _scale_out(results),
    }


def _group(results: Sequence[RunResult]) -> dict[str, Any]:
    """Figures of runs of several sources, pooled, and medians over sources."""
    names = sorted({result.run.source for result in results})
    each = [summary([one for one in results if one.run.source == name], ()) for name in names]
    medians = {
        f"{what}_median_over_sources": median(of[f"{what}_median_ape"] for of in each)
        for what in ("throughput", "memory")
    }
    return {"sources": names, **medians, **summary(results, ())}


def _scale_out(results: Results) -> dict[str, Any]:
    """Medians of errors of speed on several nodes, before and after one node was measured."""
    by_source = {
        name: {
            "n": len(of),
            "most_gpus": max(rung.gpus for rung in of),
            "median_ape": median(rung.error for rung in of),
            "median_ape_anchored": median(rung.anchored for rung in of),
        }
        for name in dict.fromkeys(rung.source for rung in results.rungs)
        if (of := [rung for rung in results.rungs if rung.source == name])
    }
    return {
        "median_over_sources": {
            key: median(of[key] for of in by_source.values())
            for key in ("median_ape", "median_ape_anchored")
        },
        "sources": by_source,
    }


def summary(runs: Sequence[RunResult], sets: Sequence[SetResult]) -> Figures:
    """The figures of some runs and the sets among them.

    Those with records are of rows in sets, rows that were records left out.
    """
    errors = {
        "throughput": [run.speed_error for run in runs],
        "memory": [run.memory_error for run in runs],
        f"throughput{_AFTER}": [error for result in sets for error in result.speed_after],
        f"memory{_AFTER}": [error for result in sets for error in result.memory_after],
    }
    figures: Figures = {"n": len(runs)}
    for name, values in errors.items():
        what, _, after = name.partition("_")
        suffix = f"_{after}" if after else ""
        figures[f"{what}_median_ape{suffix}"] = median(values)
        figures[f"{what}_mean_ape{suffix}"] = mean(values)
    regrets = [result.regret for result in sets if result.regret is not None]
    oom = [result.run.oom is True for result in runs]
    return figures | {
        "kendall_tau": mean(result.tau for result in sets),
        f"kendall_tau{_AFTER}": mean(result.tau_after for result in sets),
        "top1_regret": mean(regrets),
        "top1_within_5pct": mean(float(regret <= WITHIN) for regret in regrets),
        **oom_scores([result.p_fits for result in runs], oom),
    }
