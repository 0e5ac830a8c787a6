"""Forecasts beside measurements: real trials of tiny models, and figures that a hand can check."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import plans
from benchmarks.gpu.cases import LLAMA_1B, MEASURED
from benchmarks.gpu.judge import Forecast, forecasts, judged
from benchmarks.gpu.plans import COLUMNS, FILE, append, measure, read, row_of
from benchmarks.gpu.task import Task
from tests.benchmarks.gpu.values import GIB, a_plan, measured, out_of_memory, trial

MICRO_BATCHES = (1, 2, 4, 8, 16)
OFF = (1.01, 0.98, 1.02, 1.05, 0.5)  # measured over forecast
ERRORS = sorted(abs(1 / off - 1) for off in OFF)


def made(task: Task, off: tuple[float, ...]) -> Forecast:
    """Plans measured to be so far off from what is forecast of them, on the catalogue's CPU."""
    plans = [a_plan(micro_batch=size, accumulation=16 // size) for size in MICRO_BATCHES]
    rows = [text(row_of(LLAMA_1B.name, plan, trial(measured()))) for plan in plans]
    (found,) = forecasts(task.out, rows, tiny=True)
    for at, factor in enumerate(off):
        rows[at]["step_seconds"] = repr(float(found.said.step_seconds[at]) * factor)
        for name in ("held_bytes", "device_bytes", "reserved_bytes"):
            rows[at][name] = repr(float(found.said.peak_bytes[at]) * factor)
    return replace(found, rows=tuple(rows))


def text(row: dict[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def test_errors_are_those_of_a_hand(task: Task) -> None:
    found = judged([made(task, OFF)], cuda=False)

    assert found["plans"] == {"measured": 5, "out_of_memory": 0}
    assert found["speed"] == pytest.approx(ERRORS[2])
    assert found["speed_after"] is None  # too few to teach by five
    for which in ("reserved", "device"):
        assert found[which]["median"] == pytest.approx(ERRORS[2])
        assert found[which]["worst"] == pytest.approx(1.0)  # half of the forecast
    assert found["rows"][0]["device_error"] == pytest.approx(1.0)  # the worst first
    assert found["rows"][0]["speed_error"] == pytest.approx(1.0)


def test_context_and_libraries_are_no_part_of_the_reserved_peak(task: Task) -> None:
    found = judged([made(task, (1.0,) * 5)], cuda=True)

    assert found["device"]["worst"] == pytest.approx(0.0, abs=1e-9)
    assert found["reserved"]["worst"] > 0


def test_a_plan_that_fits_and_was_called_impossible_is_named(task: Task) -> None:
    one = made(task, (1.0,) * 5)
    said = replace(one.said, fits=np.array([1.0, 0.0, 0.9, 0.02, 1.0]))

    (words,) = judged([replace(one, said=said)], cuda=False)["wrongly_impossible"]

    assert "micro 2 x 8" in words


def test_what_ran_out_of_memory_has_no_error(task: Task) -> None:
    rows = [text(row_of(LLAMA_1B.name, a_plan(), trial(out_of_memory())))]

    found = judged(tuple(forecasts(task.out, rows, tiny=True)), cuda=False)

    assert found["plans"] == {"measured": 0, "out_of_memory": 1}
    assert found["device"] == {"median": None, "worst": None}


def test_plans_in_the_wrong_order_have_a_low_tau(task: Task) -> None:
    right = made(task, (1.0,) * 5)
    backwards = tuple(
        {**row, "step_seconds": other["step_seconds"]}
        for row, other in zip(right.rows, reversed(right.rows), strict=True)
    )

    taus = [
        judged([one], cuda=False)["by_model"][right.model]["tau"]
        for one in (right, replace(right, rows=backwards))
    ]

    assert taus == [1.0, -1.0]


def test_a_row_is_found_again_and_a_cut_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / FILE
    plan = a_plan()
    append(file, row_of("m", plan, trial(measured())))
    with file.open("a") as opened:
        opened.write("m,half of a r")

    assert len(read(file)) == 1
    append(file, row_of("m", plan, trial(out_of_memory(wanted_bytes=None))))

    first, second = read(file)
    assert tuple(first) == COLUMNS
    assert json.loads(first["plan"]) == plan.as_dict()
    assert float(first["held_bytes"]) == 3 * GIB
    assert second["outcome"] == "out_of_memory"
    assert second["wanted_bytes"] == ""


def test_without_time_nothing_is_measured_and_it_is_told(task: Task) -> None:
    late = replace(task, tiny=False, until=0.0)

    assert measure(late) == {"measured": 0, "lacking": 12}


def test_the_forecasts_of_the_kept_rows_are_as_good_as_they_were() -> None:
    """Ten plans of an H200, none of which took part in the fit of the calibration."""
    kept = Path("benchmarks/results/gpu/h200")

    found = judged(tuple(forecasts(kept, read(kept / FILE))), cuda=True)

    assert found["device"]["median"] == pytest.approx(0.019, abs=0.001)
    assert found["device"]["worst"] == pytest.approx(0.033, abs=0.001)
    assert found["speed"] == pytest.approx(0.117, abs=0.001)


@pytest.mark.thorough
@pytest.mark.slow
def test_plans_of_tiny_models_are_measured_once_and_judged(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real trials of two models, some of which run out of memory for real."""
    monkeypatch.setattr(plans, "TINY_PLANS", 4)

    assert measure(task)["lacking"] == 0

    rows = read(task.out / FILE)
    assert Counter(row["model"] for row in rows) == {case.name: 4 for case in MEASURED}
    assert {row["outcome"] for row in rows} == {"measured", "out_of_memory"}
    for row in rows:
        needed = "wanted_bytes" if row["outcome"] == "out_of_memory" else "held_bytes"
        assert float(row[needed]) > 2**20
    measure(task)
    assert read(task.out / FILE) == rows  # nothing is measured twice
    found = judged(tuple(forecasts(task.out, rows, tiny=True)), cuda=False)
    assert all(row["forecast_gib"] > 0 for row in found["rows"])
