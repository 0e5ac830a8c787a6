"""`plimsoll plan` on jobs whose end is public."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.public_jobs import JOBS, judge

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job['source']}-{job['end']}")
def test_the_end_of_a_public_job_is_forecast(job: Mapping[str, Any]) -> None:
    assert judge(job).is_right == ("wrong" not in job)
