"""The benchmark of the regret bound: truth, counts, and the widening that it leads to."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.regret_bound import AFTER, Check, by_kind, checks, figures, true_log_rates
from benchmarks.search.surfaces import Surface, Trial
from orchestrator.search.search import REGRET_WIDENING
from tests.benchmarks.search.toys import toy_surface

KEPT = Path("benchmarks/results/regret_bound.json")
GOAL = 0.9  # true sentences where something better is left


def measured_surface(rng: np.random.Generator, noise: float) -> tuple[Surface, np.ndarray]:
    """A surface of means with this noise, and the logarithms of the true throughputs."""
    truth = rng.normal(0.0, 0.3, 60)
    means = np.exp(truth + rng.normal(0.0, noise, 60))
    candidates = [{"micro_batch": float(at)} for at in range(1, 61)]
    return replace(toy_surface(candidates, means.tolist()), noise=noise), truth


def test_the_estimate_of_noisy_means_is_nearer_to_the_truth() -> None:
    """Stein's paradox: shrunk means have less squared error than the means themselves."""
    rng, raw, shrunk = np.random.default_rng(0), 0.0, 0.0
    for _ in range(20):
        surface, truth = measured_surface(rng, 0.3)
        raw += float(((np.log(surface.rate) - truth) ** 2).sum())
        shrunk += float(((true_log_rates(surface) - truth) ** 2).sum())

    assert shrunk < 0.6 * raw  # the theory: half, where noise and spread are equal


def test_exact_means_stay_as_they_are_and_failures_stay_unknown() -> None:
    surface, _ = measured_surface(np.random.default_rng(1), 1e-6)
    rates = surface.rate.copy()
    rates[3] = np.nan
    surface = replace(surface, rate=rates)

    estimate = true_log_rates(surface)

    assert np.isnan(estimate[3])
    assert estimate == pytest.approx(np.log(rates), nan_ok=True, abs=1e-6)


def test_a_check_compares_the_incumbent_with_the_fastest_untried() -> None:
    """Twelve candidates in 16, each exactly measured: the gain after k trials is known."""
    rates = [float(rate) for rate in np.random.default_rng(2).permutation(np.arange(1, 17))]
    surface = toy_surface([{"micro_batch": float(at)} for at in range(1, 17)], rates)
    exact = replace(
        surface,
        noise=1e-6,
        trials=tuple((Trial(rate=rate, log_share=None, seconds=1.0),) for rate in rates),
    )

    found = list(checks(exact, 4, (1.0, 3.0)))

    assert [check.trials for check in found] == [5, 10]  # 13 candidates: no 20th trial
    for check in found:
        assert check.bounds[0] <= check.bounds[1]
        assert check.gain == pytest.approx(round(check.gain * 100) / 100, abs=0.01)
        assert any(
            check.gain == pytest.approx(one / other, rel=1e-4) for one in rates for other in rates
        )


def check(gain: float, *bounds: float, trials: int = 5, forecasts: bool = True) -> Check:
    return Check(surface="s", forecasts=forecasts, trials=trials, gain=gain, bounds=bounds)


def test_true_sentences_are_counted_where_something_is_left() -> None:
    found = [check(0.9, 1.0, 1.2), check(1.1, 1.0, 1.2), check(1.3, 1.005, 1.2), check(1.1, 1.2, 2)]

    counts = figures(found, (1.0, 2.0))

    assert (counts["races"], counts["open"]) == (4, 3)
    assert counts["by_widening"]["1"] == {
        **{"true": 0.5, "true_where_open": 0.333},
        **{"median_bound": 1.0025, "below_1_percent": 0.75},
    }
    assert counts["by_widening"]["2"]["true_where_open"] == 0.667
    assert figures(found[:1], (1.0, 2.0))["by_widening"]["1"]["true_where_open"] is None


def test_checks_are_grouped_by_folder_forecasts_and_trials() -> None:
    bounds = (1.0,) * 5
    found = {
        "a": [check(1.1, *bounds), check(1.1, *bounds, trials=10)],
        "b": [check(1.1, *bounds, forecasts=False)],
    }

    groups = by_kind(found)

    assert groups["all"]["races"] == 3
    assert groups["all, after 5"]["races"] == 2
    assert groups["a, forecasts, after 10"]["races"] == 1
    assert groups["b, no forecasts, after 5"]["races"] == 1


def test_the_product_widens_as_little_as_the_kept_figures_allow() -> None:
    """The least widening whose sentences are true in 90 % of open races of both folders."""
    groups = json.loads(KEPT.read_text("utf-8"))["by_kind"]
    widenings = list(groups["all"]["by_widening"])

    def true_share(folder: str, widening: str) -> float:
        parts = [
            group
            for name, group in groups.items()
            if name.startswith(f"{folder}, ") and group["open"]
        ]
        true = sum(one["open"] * one["by_widening"][widening]["true_where_open"] for one in parts)
        return float(true / sum(one["open"] for one in parts))

    least = next(
        widening
        for widening in widenings
        if min(true_share("published", widening), true_share("surfaces", widening)) >= GOAL
    )

    assert math.isclose(float(least), REGRET_WIDENING)
    assert {f"all, after {trials}" for trials in AFTER} <= groups.keys()
