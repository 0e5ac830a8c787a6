"""Forecasts beside measurements: real trials of tiny models, and figures that a hand can check."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import measuring, memory, speed
from benchmarks.gpu.beside import Beside, beside
from benchmarks.gpu.cases import LLAMA_1B, MEASURED
from benchmarks.gpu.command import Asked
from benchmarks.gpu.measuring import COLUMNS, FILE, append, measured_rows, read, row_of
from benchmarks.published.metrics import kendall_tau
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import forecast
from tests.benchmarks.gpu.values import GIB, a_plan, measured, out_of_memory, trial

MICRO_BATCHES = (1, 2, 4, 8, 16)
OFF = (1.01, 0.98, 1.02, 1.05, 0.5)  # measured over forecast
ERRORS = sorted(abs(1 / off - 1) for off in OFF)


def made(asked: Asked, off: tuple[float, ...], **special: Any) -> Beside:
    """Plans measured to be so far off from what is forecast of them, on the catalogue's CPU."""
    plans = [a_plan(micro_batch=size, accumulation=16 // size) for size in MICRO_BATCHES]
    rows = [text(row_of(LLAMA_1B.name, plan, trial(measured()))) for plan in plans]
    (found,) = beside(asked, rows)
    said = found.said
    for at, factor in enumerate(off):
        rows[at]["step_seconds"] = repr(float(said.step_seconds[at]) * factor)
        for name in ("held_bytes", "device_bytes", "reserved_bytes"):
            rows[at][name] = repr(float(said.peak_bytes[at]) * factor)
        rows[at] |= special
    (found,) = beside(asked, rows)
    return found


def text(row: dict[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def test_errors_of_memory_are_those_of_a_hand(asked: Asked) -> None:
    found = memory.judged([made(asked, OFF)], cuda=False)

    assert found["plans"] == {"measured": 5, "out_of_memory": 0}
    for which in ("reserved", "device"):
        assert found[which]["median"] == pytest.approx(ERRORS[2])
        assert found[which]["worst"] == pytest.approx(1.0)  # half of the forecast
    assert found["rows"][0]["device_error"] == pytest.approx(1.0)  # the worst first


def test_context_and_libraries_are_no_part_of_the_reserved_peak(asked: Asked) -> None:
    one = made(asked, (1.0,) * 5)
    inside = one.said.peak_bytes - one.outside_bytes

    found = memory.judged([one], cuda=True)

    off = np.abs(inside / one.said.peak_bytes - 1)
    assert found["reserved"]["worst"] == pytest.approx(float(off.max()))
    assert found["device"]["worst"] == pytest.approx(0.0, abs=1e-9)


def test_a_plan_that_fits_and_was_called_impossible_is_named(asked: Asked) -> None:
    one = made(asked, (1.0,) * 5)
    said = replace(one.said, fits=np.array([1.0, 0.0, 0.9, 0.02, 1.0]))

    found = memory.judged([replace(one, said=said)], cuda=False)

    assert len(found["wrongly_impossible"]) == 1
    assert "micro 2 x 8" in found["wrongly_impossible"][0]


def test_what_ran_out_of_memory_has_no_error_and_counts_as_forecast(asked: Asked) -> None:
    rows = [text(row_of(LLAMA_1B.name, a_plan(), trial(out_of_memory())))]

    found = memory.judged(beside(asked, rows), cuda=False)

    assert found["plans"] == {"measured": 0, "out_of_memory": 1}
    assert found["device"] == {"median": None, "worst": None}
    assert found["rows"][0]["wanted_gib"] == 9


def test_errors_of_speed_are_those_of_a_hand(asked: Asked) -> None:
    one = made(asked, OFF)

    found = speed.judged([one])

    assert found["median_error"] == pytest.approx(ERRORS[2])
    said = forecast(one.work, shipped_calibration(), 1.0).step_seconds
    tau = kendall_tau(1 / said, 1 / one.step_seconds, noise=0.03)
    assert found["lowest_tau"] == tau
    assert found["median_error_after"] is None  # too few to teach by five
    assert found["rows"][0]["error"] == pytest.approx(1.0)


def test_the_lowest_tau_of_the_models_counts(asked: Asked) -> None:
    right = made(asked, (1.0,) * 5)
    backwards = tuple(
        {**row, "step_seconds": other["step_seconds"]}
        for row, other in zip(right.rows, reversed(right.rows), strict=True)
    )
    wrong = replace(right, model="another", rows=backwards)

    assert speed.judged([right])["lowest_tau"] == 1.0
    assert speed.judged([right, wrong])["lowest_tau"] < 0


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
    assert first["reserved_bytes"] == str(2 * GIB)
    assert second["outcome"] == "out_of_memory"
    assert second["wanted_bytes"] == ""
    assert second["limit_bytes"] == str(8 * GIB)


def test_without_time_nothing_is_measured_and_it_is_told(asked: Asked) -> None:
    late = replace(asked, tiny=False, until=0.0)

    rows, left = measured_rows(late)

    assert rows == []
    assert left == "12 plans are not measured"


@pytest.mark.thorough
@pytest.mark.slow
def test_plans_of_tiny_models_are_measured_once_and_judged(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real trials of two models, some of which run out of memory for real."""
    monkeypatch.setattr(measuring, "TINY_PLANS", 4)
    rows, left = measured_rows(asked)

    assert left == ""
    assert Counter(row["model"] for row in rows) == {case.name: 4 for case in MEASURED}
    assert {row["outcome"] for row in rows} == {"measured", "out_of_memory"}
    for row in rows:
        needed = "wanted_bytes" if row["outcome"] == "out_of_memory" else "held_bytes"
        assert float(row[needed]) > 2**20
    assert measured_rows(asked) == (rows, "")  # nothing is measured twice

    both = beside(asked, rows)
    told = memory.judged(both, cuda=False)
    assert all(row["forecast_gib"] > 0 for row in told["rows"])
    fast = speed.judged(both)["rows"]
    assert len(fast) == told["plans"]["measured"]


def test_the_forecasts_of_the_kept_rows_are_as_good_as_they_were() -> None:
    """Ten plans of an H200, none of which took part in the fit of the calibration."""
    kept = Asked(out=Path("benchmarks/results/gpu/h200"), tiny=False, until=0.0, judge=True)
    models = beside(kept, measured_rows(kept)[0])

    device = memory.judged(models, cuda=True)["device"]
    assert device["median"] == pytest.approx(0.019, abs=0.001)
    assert device["worst"] == pytest.approx(0.033, abs=0.001)
    assert speed.judged(models)["median_error"] == pytest.approx(0.117, abs=0.001)
