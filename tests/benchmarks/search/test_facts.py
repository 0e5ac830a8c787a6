"""Facts of a surface apart from its races, by hand-computed cases."""

import numpy as np
import pytest

from benchmarks.search.run import _facts
from tests.benchmarks.search.toys import LIMIT_GIB, toy_surface

CANDIDATES = [{"micro_batch": float(2**power)} for power in range(4)]


def facts(**forecast: list[float]) -> dict[str, object]:
    surface = toy_surface(
        CANDIDATES, [10.0, 20.0, 30.0, None], peaks_gib=[4.0, 8.0, 12.0, 20.0], **forecast
    )
    return _facts(surface)


def test_a_forecast_is_judged_by_what_ran() -> None:
    """One of three pairs is in the wrong order; speeds are off by 50, 40 and 33 %, peaks by 10, 20
    and 40 %.
    """
    told = facts(
        log_rate=list(np.log([15.0, 12.0, 40.0, 1.0])),
        log_share=list(np.log(np.array([4.4, 9.6, 16.8, 20.0]) / LIMIT_GIB)),
    )

    assert told["forecast_tau"] == pytest.approx(1 / 3)
    assert told["forecast_speed_error"] == pytest.approx(0.4)
    assert told["forecast_memory_error"] == pytest.approx(0.2)


def test_without_a_forecast_there_is_nothing_to_judge() -> None:
    told = facts()

    assert told["forecast_tau"] is None
    assert told["forecast_speed_error"] is None
    assert told["forecast_memory_error"] is None
