"""Calibration by a study: measured trials shift forecasts towards them and narrow intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from orchestrator.core.records import Record
from orchestrator.forecast.calibration import calibrated, study_device
from orchestrator.forecast.table import ForecastTable, forecast_table
from search_spaces.costs.calibration import Calibration
from search_spaces.errors import StudyError
from search_spaces.trial import Estimate
from tests.orchestrator.forecast.values import a_calibration, a_footprint, a_question
from tests.orchestrator.records import make_record
from tests.outcomes import make_measured

SLOWER, LARGER = 1.3, 1.1


@pytest.fixture(scope="module")
def before() -> ForecastTable:
    return forecast_table(a_question(), 8, a_footprint, a_calibration())


def measured(sized: ForecastTable, row: int) -> Record:
    """A trial that was slower and needed more memory than forecast."""
    told = sized.forecasts
    seconds = float(told.step_seconds[row]) * SLOWER
    outcome = make_measured()
    outcome = replace(
        outcome,
        step_seconds=Estimate(value=seconds, low=seconds, high=seconds),
        memory=replace(outcome.memory, peak_bytes=int(told.peak_bytes[row] * LARGER)),
    )
    return make_record(row, sized.plan(row), outcome)


def learned(records: tuple[Record, ...]) -> Calibration:
    question = a_question()
    return calibrated(
        a_calibration(), records, model=question.model, device=question.device, trace=a_footprint
    )


def test_forecasts_move_towards_what_was_measured(before: ForecastTable) -> None:
    rows = [0, len(before.table) // 2, len(before.table) - 1]
    calibration = learned(tuple(measured(before, row) for row in rows))

    after = forecast_table(a_question(), 8, a_footprint, calibration).forecasts

    told = before.forecasts
    longer = after.step_seconds[rows] / told.step_seconds[rows]
    more = after.peak_bytes[rows] / told.peak_bytes[rows]
    assert (longer > 1 + (SLOWER - 1) / 2).all()
    assert (longer < SLOWER + 0.05).all()
    assert (more > 1 + (LARGER - 1) / 2).all()
    assert (after.step_deviation <= told.step_deviation + 1e-9).all()
    assert np.median(after.step_deviation) < 0.8 * np.median(told.step_deviation)


def test_a_study_says_what_it_ran_on(before: ForecastTable) -> None:
    spec = a_question().spec
    record = measured(before, 0)

    assert study_device(spec, (record,)).name == "cpu"
    with pytest.raises(StudyError, match="device it ran on"):
        study_device(spec, (replace(record, fingerprint=None),))
