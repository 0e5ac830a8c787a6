"""`forecast`: properties that hold for all coefficients."""

import numpy as np
import pytest
from scipy.stats import lognorm

from benchmarks.published.product import concatenate_workloads
from search_spaces.costs.calibration import CALIBRATIONS, shipped_calibration
from search_spaces.costs.forecast import estimate, forecast
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.time import TERMS
from search_spaces.hardware.catalogue import known_device
from tests.search_spaces.costs.values import a_plan, work

GIB = 2**30
LIMIT = 8 * GIB


def test_terms_and_categories_add_up() -> None:
    plans = work(a_plan(), a_plan(data=8, zero_stage=3), a_plan(pipeline=2, tensor=2))
    found = forecast(plans, shipped_calibration(), LIMIT)

    for row in range(3):
        assert found.terms[row].sum() == pytest.approx(found.step_seconds[row])
        assert found.categories[row].sum() == pytest.approx(found.peak_bytes[row])
        assert len(found.terms[row]) == len(TERMS)
        assert len(found.categories[row]) == len(CATEGORIES)


def test_an_interval_holds_95_percent_of_a_lognormal_distribution() -> None:
    made = estimate(50.0, 0.1)

    assert (made.low, made.high) == pytest.approx(
        lognorm(s=0.1, scale=50.0).interval(0.95), rel=1e-4
    )


def test_a_better_device_is_faster_and_a_smaller_limit_fits_less() -> None:
    calibration = shipped_calibration()
    a100, h100 = (
        forecast(work(a_plan(micro_batch=8), device=known_device(name)), calibration, LIMIT)
        for name in ("A100-80GB", "H100-80GB")
    )
    tight = forecast(work(a_plan(micro_batch=8)), calibration, a100.peak_bytes[0])

    assert h100.samples_per_second[0] > a100.samples_per_second[0]
    assert a100.fits[0] > 0.99
    assert tight.fits[0] == pytest.approx(0.5)


def test_many_plans_are_forecast_as_each_alone_is() -> None:
    plans = [
        a_plan(micro_batch=m, tensor=t, data=d, zero_stage=z if d > 1 else 0, checkpoint_ratio=r)
        for m in (1, 4)
        for t in (1, 2)
        for d in (1, 8)
        for z in (0, 3)
        for r in (0.0, 0.5)
    ]
    calibration = shipped_calibration()
    many = forecast(work(*plans), calibration, LIMIT)
    alone = concatenate_workloads([work(plan) for plan in plans])

    np.testing.assert_allclose(many.step_seconds, forecast(alone, calibration, LIMIT).step_seconds)
    np.testing.assert_allclose(many.peak_bytes, forecast(alone, calibration, LIMIT).peak_bytes)


def test_more_than_one_chunk_is_forecast_like_one() -> None:
    few = work(a_plan(micro_batch=1), a_plan(micro_batch=2))
    many = few.take(np.arange(140_000) % 2)
    calibration = shipped_calibration()

    found = forecast(many, calibration, LIMIT)
    np.testing.assert_allclose(
        found.step_seconds[-2:], forecast(few, calibration, LIMIT).step_seconds
    )


def test_records_pull_the_forecast_to_what_was_measured() -> None:
    plans = work(*(a_plan(micro_batch=m) for m in (1, 2, 4, 8)))
    before = shipped_calibration()
    first = forecast(plans, before, LIMIT)
    truth, held = first.step_seconds * 1.4, first.peak_bytes * 1.1
    after = before.learned(plans.take(np.array([0, 3])), truth[[0, 3]], held[[0, 3]])
    second = forecast(plans, after, LIMIT)

    assert abs(np.log(second.step_seconds / truth)).max() < 0.15
    assert abs(np.log(second.peak_bytes / held)).max() < 0.03
    assert (second.step_deviation < first.step_deviation).all()


def test_a_calibration_is_kept_as_json() -> None:
    calibration = shipped_calibration()

    assert CALIBRATIONS.validate_json(CALIBRATIONS.dump_json(calibration)) == calibration
