"""Rows of a plan and of how its trial ended, in columns that others read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.published.baseline import ConstantMfu
from benchmarks.published.cells import COLUMNS, Row
from benchmarks.published.reader import run_of
from benchmarks.record.rows import MEASURED, PUBLISHED, header, knob_cells, varying_knobs
from benchmarks.search.surfaces import surfaces_in
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.spec.schema import GIB
from search_spaces.trial import Outcome
from tests.benchmarks.record.values import row, subject
from tests.orchestrator.records import make_plan
from tests.outcomes import LIMIT_BYTES, every_outcome, make_measured, make_oom


def test_the_columns_are_those_of_published_tables() -> None:
    assert set(PUBLISHED) == {*COLUMNS, "url_or_path"}
    assert header(("micro_batch", "checkpoint_ratio")) == (
        *PUBLISHED,
        "checkpoint_ratio",
        *MEASURED,
    )


def test_a_measurement() -> None:
    told = row(make_measured(40.0, 0.6))

    assert told["model"] == "llama-tiny"
    assert (told["n_params"], told["n_layers"], told["seq_len"]) == ("2100000", "4", "128")
    assert (told["hidden"], told["n_heads"], told["n_kv_heads"]) == ("192", "6", "2")
    assert (told["gpu"], told["gpu_mem_gib"], told["n_gpus"]) == ("cpu", "8", "2")
    assert (told["samples_per_s"], told["samples_per_s_low"]) == ("40", "39.4")
    assert float(told["tokens_per_s_per_gpu"]) == pytest.approx(40 * 68 / 2)
    assert float(told["peak_mem_gib"]) == pytest.approx(0.6 * LIMIT_BYTES / GIB)
    assert (told["oom"], told["outcome"], told["repeat"]) == ("false", "measured", "1")
    assert told["trial_seconds"] == "5.6"
    assert told["ranking_sets"] == subject().set_id


@pytest.mark.parametrize("outcome", every_outcome(), ids=lambda outcome: outcome.kind)
def test_every_ending_is_a_row_that_is_read_back(outcome: Outcome) -> None:
    told = row(outcome)

    failed = outcome.kind not in ("measured", "out_of_memory")
    assert told["notes"].startswith("RUN FAILED: ") is failed
    assert "\n" not in told["notes"]
    assert set(told) <= {*PUBLISHED, *MEASURED}
    if not failed:
        run = run_of(Row(told), source="tiny", line=2)
        assert run.oom is (outcome.kind == "out_of_memory")


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"zero_stage": 2},
        {"zero_stage": 3, "data": 8, "replicas": 2},
        {"engine": "deepspeed", "zero_stage": 0},
        {"engine": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu"},
        {"checkpoint_ratio": 1.0},
        {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective"},
        {"tensor": 2, "zero_stage": 3},
        {"tensor": 2, "zero_stage": 3, "sequence_parallel": True},
        {"pipeline": 2, "zero_stage": 3},
        {"attention": "eager"},
    ],
)
def test_the_reader_of_published_tables_finds_the_plan(knobs: dict[str, Any]) -> None:
    plan = make_plan(**knobs)

    run = run_of(Row(row(**knobs)), source="tiny", line=2)

    layout = run.layout
    assert layout.zero_stage == plan.zero_stage
    assert layout.shards == (plan.data // plan.replicas if plan.zero_stage else 1)
    assert (layout.tensor, layout.pipeline, layout.data) == (
        plan.tensor,
        plan.pipeline,
        plan.data,
    )
    assert layout.sequence_parallel == plan.sequence_parallel
    assert layout.offload_optimizer == (plan.offload_optimizer != "none")
    assert layout.checkpoint_ratio == plan.checkpoint_ratio
    assert (layout.attention == "eager") == (plan.attention == "eager")
    assert (layout.micro_batch, layout.accumulation) == (plan.micro_batch, plan.accumulation)


def test_knobs_that_vary_and_what_stands_in_their_columns() -> None:
    plans: list[Plan] = [
        make_plan(micro_batch=1, accumulation=8, compile=True),
        make_plan(micro_batch=2, accumulation=4, checkpoint_ratio=1.0),
    ]

    knobs = varying_knobs(PlanTable.of(plans))

    assert knobs == ("micro_batch", "checkpoint_ratio", "compile")
    assert [knob_cells(plan, knobs) for plan in plans] == [
        ("1", "0.5", "true"),
        ("2", "1", "false"),
    ]
    assert varying_knobs(PlanTable.of(plans[:1])) == ()


def test_a_recording_is_a_surface(tmp_path: Path) -> None:
    knobs = ("micro_batch", "checkpoint_ratio")
    rows = [
        row(
            make_measured(10.0 * micro) if micro < 8 else make_oom(),
            knobs,
            micro_batch=micro,
            accumulation=8 // micro,
            checkpoint_ratio=ratio,
        )
        for micro in (1, 2, 4, 8)
        for ratio in (0.0, 1.0)
    ]
    with (tmp_path / "tiny.csv").open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, header(knobs), restval="")
        writer.writeheader()
        writer.writerows(rows)

    (surface,) = surfaces_in(tmp_path, lambda _: ConstantMfu(), least=8)

    assert surface.name == "tiny"  # the one set of its table
    assert len(surface) == 8
    assert int(np.isnan(surface.rate).sum()) == 2
    assert surface.best == pytest.approx(40)
    assert surface.log_rate is not None
