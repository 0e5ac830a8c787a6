"""The page of a sweep: figures worked out by hand, everything counted once."""

from __future__ import annotations

import pytest

from orchestrator.report.page_data import ReportData, ablation
from orchestrator.report.sweep_page import change_words, report_page, speed_change
from tests.orchestrator.explain.values import out_of_memory
from tests.orchestrator.report.pages import figures_of, words_of
from tests.orchestrator.report.values import ANSWER, START, told_of, validated


def test_the_answer_is_two_sentences_with_what_it_gains() -> None:
    page = report_page(told_of())

    headline = words_of(page.split("<h1>")[1].join(["<main>", "</main>"]).split("</h1>")[0])
    assert headline.startswith("Trial 1 is best, not validated: fsdp zero3 micro 4")
    assert "50.0 ± 0.7 samples/s with a peak of 60.0 GiB, 75 % of the limit." in headline
    # 50 / 20 samples/s
    assert "2.50 x (2.45 to 2.55) the speed of the baseline" in headline


def test_each_knob_alone_is_measured_where_it_was_and_else_forecast() -> None:
    found = {change_words(worth): worth for worth in ablation(told_of())}

    assert set(found) == {
        "micro_batch 4 → 1",
        "micro_batch 4 → 2",
        "zero_stage 3 → 2",
        "checkpoint_ratio 0.0 → 0.5",
        "checkpoint_ratio 0.0 → 1.0",
    }
    assert found["micro_batch 4 → 1"].trial == 2
    assert speed_change(found["micro_batch 4 → 1"]) == pytest.approx(-0.5)
    assert speed_change(found["checkpoint_ratio 0.0 → 1.0"]) == pytest.approx(-0.01)
    failed = found["zero_stage 3 → 2"]
    assert (failed.trial, failed.outcome_kind, failed.ratio) == (4, "out_of_memory", None)
    untried = found["micro_batch 4 → 2"]
    assert (untried.trial, untried.ratio is not None) == (None, True)
    measured_alone = ablation(told_of(forecasts=False))
    assert {worth.trial for worth in measured_alone} == {2, 3, 4}


def test_charts_show_every_trial() -> None:
    drawn = figures_of(report_page(told_of()))

    points = {one["name"]: one for one in drawn["trials"]["data"]}
    assert len(points["measured"]["x"]) == 4
    assert points["out of memory"]["x"] == [80.0]  # on the memory limit
    assert (points["best"]["x"], points["best"]["y"]) == ([60.0], [50.0])
    assert points["Pareto front"]["x"] == sorted(points["Pareto front"]["x"])
    assert drawn["progress"]["data"][0]["y"][-1] == 50.0
    assert len(drawn["memory"]["data"][0]["x"]) == 3  # best, baseline, equal


def test_without_forecasts_it_says_why_and_tells_what_was_measured() -> None:
    page = report_page(told_of(forecasts=False))

    words = words_of(page)
    assert "mymodel.py is not there" in words
    assert "forecast" not in {one["name"] for one in figures_of(page)["trials"]["data"]}


def test_a_sweep_in_which_nothing_fits_has_a_page() -> None:
    page = report_page(told_of([(START, out_of_memory(90)), (ANSWER, out_of_memory(None))]))

    words = words_of(page)
    assert words.startswith("No plan is feasible; the closest is trial 0")
    assert "memory" not in figures_of(page)


def test_a_validated_plan_says_so() -> None:
    page = report_page(ReportData(state=validated((3.0, 2.0, 1.0)), context=None))

    assert "Trial 1 is best, validated in a fresh worker group" in words_of(page)


def test_what_does_not_train_the_same_is_not_the_answer() -> None:
    state = validated((3.0, 2.5, 1.0))

    words = words_of(report_page(ReportData(state=state, context=None)))
    assert not words.startswith("Trial 1 is best")
    assert "the validation of trial 1 failed: its losses differ by up to 17 %" in words.replace(
        "the validation of trial 1 failed: failed:", "the validation of trial 1 failed:"
    )
