"""Metrics against cases worked out by hand."""

import math

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.published.metrics import kendall_tau, oom_scores, percentage_errors, top1_regret

NAN = math.nan


def test_errors_are_shares_of_what_was_measured() -> None:
    errors = percentage_errors([11.0, 5.0, NAN, 3.0], [10.0, 10.0, 1.0, NAN])

    assert errors.tolist() == pytest.approx([0.1, 0.5])


def test_tau_without_noise_is_scipys() -> None:
    random = np.random.default_rng(7)
    truth = random.permutation(20) + 1.0
    told = truth + random.normal(0, 6, 20)

    expected = kendalltau(told, truth).statistic
    assert kendall_tau(told, truth, noise=0.0) == pytest.approx(expected)


def test_pairs_within_noise_do_not_count() -> None:
    """The pair of 100 and 102 is a tie at 3 %; both pairs with 110 count and agree."""
    assert kendall_tau([2.0, 1.0, 3.0], [100.0, 102.0, 110.0], noise=0.03) == 1.0
    assert kendall_tau([2.0, 1.0, 3.0], [100.0, 102.0, 110.0], noise=0.01) == pytest.approx(1 / 3)
    assert kendall_tau([1.0, 2.0], [100.0, 102.0], noise=0.03) is None


def test_what_is_forecast_equal_neither_agrees_nor_not() -> None:
    assert kendall_tau([1.0, 1.0, 2.0], [1.0, 2.0, 3.0], noise=0.03) == pytest.approx(2 / 3)


def test_regret_is_what_the_predicted_best_lacks() -> None:
    assert top1_regret([1.0, 3.0, 2.0], [100.0, 90.0, 80.0]) == pytest.approx(0.1)
    assert top1_regret([1.0, 3.0, NAN], [100.0, 90.0, 80.0]) == pytest.approx(0.1)
    assert top1_regret([3.0, 3.0, 1.0], [100.0, 80.0, 60.0]) == pytest.approx(0.1)
    assert top1_regret([1.0], [100.0]) is None


def test_oom_scores() -> None:
    chances = [0.1, 0.2, 0.7, 0.4, 0.95, NAN]
    truth = [True, True, True, False, False, True]

    scores = oom_scores(chances, truth)
    assert scores["oom_precision"] == scores["oom_recall"] == pytest.approx(2 / 3)
    assert scores["brier"] == pytest.approx((0.01 + 0.04 + 0.49 + 0.36 + 0.0025) / 5)
    assert (scores["kept_back"], scores["told_off"]) == (0.5, 1.0)
    none = oom_scores([0.1, 0.9], [False, False])
    assert (none["oom_precision"], none["oom_recall"], none["told_off"]) == (None, None, None)
    assert oom_scores([0.9], [True])["oom_recall"] == 0.0
