"""Forecasts beside measurements: real trials of tiny models, and figures that a hand can check."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.judge import Forecast, forecasts, judged
from benchmarks.gpu.results import Results, plan_rows
from benchmarks.gpu.run import figures_of
from search_spaces.plan import Plan
from search_spaces.trial import Outcome
from tests.benchmarks.gpu.values import a_plan, measured, out_of_memory, trial

MICRO_BATCHES = (1, 2, 4, 8, 16)
OFF = (1.01, 0.98, 1.02, 1.05, 0.5)  # measured over forecast
ERRORS = sorted(abs(1 / off - 1) for off in OFF)


def rows_of(folder: Path, *trials: tuple[Plan, Outcome]) -> list[dict[str, str]]:
    """Rows of trials that a folder's results tell of."""
    for plan, outcome in trials:
        figures = figures_of(LLAMA_1B.name, plan, trial(outcome))
        Results(folder=folder).add("plans", plan.key, figures)
    return plan_rows(folder)


def made(folder: Path, off: tuple[float, ...]) -> Forecast:
    """Plans measured to be so far off from what is forecast of them, on the catalogue's CPU."""
    plans = [a_plan(micro_batch=size, accumulation=16 // size) for size in MICRO_BATCHES]
    rows = rows_of(folder, *((plan, measured()) for plan in plans))
    (found,) = forecasts(folder, rows, tiny=True)
    for at, factor in enumerate(off):
        rows[at]["step_seconds"] = repr(float(found.said.step_seconds[at]) * factor)
        for name in ("held_bytes", "device_bytes", "reserved_bytes"):
            rows[at][name] = repr(float(found.said.peak_bytes[at]) * factor)
    return replace(found, rows=tuple(rows))


def test_errors_are_those_of_a_hand(tmp_path: Path) -> None:
    found = judged([made(tmp_path, OFF)], cuda=False)

    assert found["plans"] == {"measured": 5, "out_of_memory": 0}
    assert found["speed"] == pytest.approx(ERRORS[2])
    assert found["speed_after"] is None  # too few to teach by five
    for which in ("reserved", "device"):
        assert found[which]["median"] == pytest.approx(ERRORS[2])
        assert found[which]["worst"] == pytest.approx(1.0)  # half of the forecast
    assert found["rows"][0]["device_error"] == pytest.approx(1.0)  # the worst first
    assert found["rows"][0]["speed_error"] == pytest.approx(1.0)


def test_context_and_libraries_are_no_part_of_the_reserved_peak(tmp_path: Path) -> None:
    found = judged([made(tmp_path, (1.0,) * 5)], cuda=True)

    assert found["device"]["worst"] == pytest.approx(0.0, abs=1e-9)
    assert found["reserved"]["worst"] > 0


def test_a_plan_that_fits_and_was_called_impossible_is_named(tmp_path: Path) -> None:
    one = made(tmp_path, (1.0,) * 5)
    said = replace(one.said, fits=np.array([1.0, 0.0, 0.9, 0.02, 1.0]))

    (words,) = judged([replace(one, said=said)], cuda=False)["wrongly_impossible"]

    assert "micro 2 x 8" in words


def test_what_ran_out_of_memory_has_no_error(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, (a_plan(), out_of_memory()))

    found = judged(tuple(forecasts(tmp_path, rows, tiny=True)), cuda=False)

    assert found["plans"] == {"measured": 0, "out_of_memory": 1}
    assert found["device"] == {"median": None, "worst": None}


def test_plans_in_the_wrong_order_have_a_low_tau(tmp_path: Path) -> None:
    right = made(tmp_path, (1.0,) * 5)
    backwards = tuple(
        {**row, "step_seconds": other["step_seconds"]}
        for row, other in zip(right.rows, reversed(right.rows), strict=True)
    )

    taus = [
        judged([one], cuda=False)["by_model"][right.model]["tau"]
        for one in (right, replace(right, rows=backwards))
    ]

    assert taus == [1.0, -1.0]


def test_the_forecasts_of_the_kept_rows_are_as_good_as_they_were() -> None:
    """Ten plans of an H200, none of which took part in the fit of the calibration."""
    kept = Path("benchmarks/results/gpu/h200")

    found = judged(tuple(forecasts(kept, plan_rows(kept))), cuda=True)

    assert found["device"]["median"] == pytest.approx(0.019, abs=0.001)
    assert found["device"]["worst"] == pytest.approx(0.033, abs=0.001)
    assert found["speed"] == pytest.approx(0.080, abs=0.001)
    assert found["speed_after"] < 0.04  # whichever five plans were measured
    assert found["leave_one_out"] < 0.05
    model = found["by_model"]["llama-3.2-1b"]  # whose baseline the host limits
    assert model["others"] < 0.08
    assert model["after_baseline"] < model["others"] + 0.002
