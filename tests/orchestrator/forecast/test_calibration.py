"""The device that a study ran on, which forecasts that learn from it are for."""

from dataclasses import replace

import pytest

from orchestrator.forecast.calibration import study_device
from search_spaces.errors import StudyError
from tests.orchestrator.records import make_plan, make_record, make_spec
from tests.outcomes import make_measured


def test_a_study_says_what_it_ran_on() -> None:
    record = make_record(0, make_plan(), make_measured())

    assert study_device(make_spec(), (record,)).name == "cpu"
    with pytest.raises(StudyError, match="device it ran on"):
        study_device(make_spec(), (replace(record, fingerprint=None),))
