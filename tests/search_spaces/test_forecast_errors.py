"""Errors of forecasts, compared with manual calculations, and their storage in records."""

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from orchestrator.core.records import Record, forecast_errors
from tests.orchestrator.records import make_plan, make_record
from tests.outcomes import make_expectation, make_measured, make_oom

RECORDS: TypeAdapter[Record] = TypeAdapter(Record)


def test_errors_are_forecast_over_measurement_less_1() -> None:
    found = forecast_errors(make_expectation(30.0, 0.5), make_measured(40.0, 0.4))

    assert found is not None
    assert found.speed == pytest.approx(-0.25)
    assert found.memory == pytest.approx(0.25)


def test_what_was_not_measured_has_no_error() -> None:
    assert forecast_errors(make_expectation(30.0), make_oom()) is None
    assert forecast_errors(None, make_measured()) is None


def test_no_memory_seen_says_nothing_of_memory() -> None:
    found = forecast_errors(make_expectation(30.0), make_measured(30.0, 0.0))

    assert found is not None
    assert (found.speed, found.memory) == (0.0, None)


def test_a_record_keeps_its_forecast_as_json() -> None:
    record = replace(make_record(3, make_plan(), make_oom()), forecast=make_expectation(30.0))

    assert RECORDS.validate_json(RECORDS.dump_json(record)) == record
