"""The judge itself, by forecasters whose errors are known beforehand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.__main__ import main
from benchmarks.published.baseline import ConstantMfu, sample_flops
from benchmarks.published.evaluate import evaluate
from benchmarks.published.forecaster import Forecaster, RunForecasts
from benchmarks.published.reader import read
from benchmarks.published.report import report
from benchmarks.published.values import Run, Tables
from tests.benchmarks.published.rows import read_one, write_table

KEYS = {
    "n",
    *("throughput_median_ape", "throughput_median_ape_k3"),
    *("memory_median_ape", "memory_median_ape_k3"),
    *("kendall_tau", "kendall_tau_k3", "top1_regret", "top1_within_5pct"),
    *("oom_precision", "oom_recall", "brier", "kept_back", "told_off"),
}


@dataclass(frozen=True)
class Scaled:
    """Forecasts `factor` times what was measured, exactly once it has seen a record."""

    factor: float
    seen: list[tuple[Run, ...]] = field(default_factory=list)

    def forecast(self, runs: Sequence[Run]) -> RunForecasts:
        def column(values: Sequence[float | None]) -> np.ndarray:
            return self.factor * np.array([v or math.nan for v in values], float)

        return RunForecasts(
            samples_per_second=column([run.samples_per_second for run in runs]),
            memory_bytes=column([run.peak_memory_bytes for run in runs]),
            p_fits=np.array([0.1 if run.oom else 0.9 for run in runs]),
            peak_share=np.array([2.0 if run.oom else 0.5 for run in runs]),
        )

    def calibrated(self, records: Sequence[Run]) -> Scaled:
        self.seen.append(tuple(records))
        return Scaled(1.0, self.seen)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """A set of five micro-batches with a repeat, one run that ran out, and another source."""
    rows = [
        {"micro_batch": str(2**k), "samples_per_s": str(10 + 2 * k), "ranking_sets": "S001"}
        for k in range(5)
    ]
    oom = {"micro_batch": "64", "samples_per_s": "", "peak_mem_gib": "", "oom": "true"}
    write_table(tmp_path, "first", [*rows, rows[2], oom | {"ranking_sets": "S001"}])
    extrapolated = {"notes": "semi-synthetic", "samples_per_s": "1"}
    write_table(tmp_path, "second", [{}, extrapolated])
    return read(tmp_path)


def test_figures_of_a_forecaster_that_is_a_fifth_too_high(tables: Tables) -> None:
    results = evaluate(tables, lambda _: Scaled(1.2))
    figures = report(tables, results, results)

    overall = figures["overall"]
    assert overall.keys() >= KEYS
    assert overall["n"] == 8  # all but the extrapolated one
    assert overall["throughput_median_ape"] == pytest.approx(0.2)
    assert overall["memory_median_ape"] == pytest.approx(0.2)
    assert overall["throughput_median_ape_k3"] == pytest.approx(0.0)
    assert (overall["kendall_tau"], overall["top1_regret"]) == (1.0, 0.0)
    assert overall["kendall_tau_k3"] == 1.0
    assert overall["top1_within_5pct"] == 1.0
    assert (overall["oom_precision"], overall["oom_recall"]) == (1.0, 1.0)
    assert figures["sources"]["second"]["oom_recall"] is None
    assert figures["median_over_sources"]["n"] == 2
    assert figures["baseline"].keys() == figures.keys() - {"baseline", "skipped"}
    plain = figures["groups"]["plain"]
    assert (plain["sources"], plain["n"]) == (["first", "second"], 8)
    assert plain["throughput_median_over_sources"] == pytest.approx(0.2)
    assert "expert_ranks" not in figures["groups"]


def test_records_and_their_repeats_are_not_judged(tables: Tables) -> None:
    seen: list[tuple[Run, ...]] = []
    results = evaluate(tables, lambda _: Scaled(1.2, seen))

    (of_set,) = results.sets
    records = [one for one in seen if len(one) == 3]  # three draws of five configurations
    repeated = sum(run.layout.micro_batch == 4 for one in records for run in one)
    assert len(records) == len(seen) == 3
    assert len(of_set.speed_after) == 3 * 3 - repeated  # six rows less records and their repeats


def test_runs_on_several_nodes_are_anchored_on_the_same_run_on_one(tmp_path: Path) -> None:
    def ranks(gpus: int, **cells: str) -> dict[str, str]:
        data = {"n_gpus": str(gpus), "dp": str(gpus), "sharding": "fsdp_full"}
        return data | {"global_batch": str(4 * gpus), "samples_per_s": str(gpus)} | cells

    ladder = [ranks(8), ranks(16), ranks(64)]
    others = [ranks(2), ranks(32, micro_batch="2", global_batch="64"), ranks(64, seq_len="512")]
    write_table(tmp_path, "ladder", [*ladder, *others])
    seen: list[tuple[Run, ...]] = []
    tables = read(tmp_path)
    results = evaluate(tables, lambda _: Scaled(1.2, seen))

    assert [run.gpus for run in seen[-1]] == [2]  # the fewest, of the same micro-batch and length
    assert [rung.gpus for rung in results.rungs] == [16, 64]
    assert [rung.error for rung in results.rungs] == pytest.approx([0.2, 0.2])
    assert [rung.anchored for rung in results.rungs] == pytest.approx([0.0, 0.0])
    scaled = report(tables, results, results)["scale_out"]
    assert scaled["sources"]["ladder"]["most_gpus"] == 64
    assert scaled["median_over_sources"]["median_ape"] == pytest.approx(0.2)


def test_each_source_is_forecast_without_it(tables: Tables) -> None:
    left_out: list[str] = []

    def without(source: str) -> Forecaster:
        left_out.append(source)
        return Scaled(1.0)

    evaluate(tables, without)

    assert left_out == ["first", "second"]


def test_baseline_is_40_percent_of_the_peak(tmp_path: Path) -> None:
    run = read_one(tmp_path)
    told = ConstantMfu().forecast([run])

    rate = float(told.samples_per_second[0])
    assert rate * sample_flops(run) == pytest.approx(0.4 * 312e12)
    again = ConstantMfu().calibrated([run]).forecast([run])
    assert again.samples_per_second[0] == pytest.approx(10)
    assert again.memory_bytes[0] == pytest.approx(30 * 2**30)


def test_flops_of_the_baseline_are_those_published(tmp_path: Path) -> None:
    """GPT-3 XL: 6 x 1.32e9 per token (Brown et al. 2020, table D.1), the embedding once."""
    run = read_one(tmp_path, vocab="50257", seq_len="2048")

    attention = 12 * 24 * 2048 * 2048
    assert sample_flops(run) / 2048 - attention == pytest.approx(6 * 1.32e9, rel=0.02)


def test_command_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path, "table", [{}, {"gpu": ""}])
    out = tmp_path / "figures.json"

    assert main([str(tmp_path), "--out", str(out)], lambda _: ConstantMfu()) == 0
    figures = json.loads(out.read_text())
    assert figures["skipped"] == {"no GPU": 1}
    assert "commit" in figures
    assert "throughput_median_ape" in capsys.readouterr().out
