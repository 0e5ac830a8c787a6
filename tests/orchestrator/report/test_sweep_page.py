"""The page of a sweep: figures worked out by hand, everything counted once."""

from orchestrator.explain.effects import KnobEffect, single_changes
from orchestrator.report.sweep_document import report_page
from orchestrator.report.sweep_tables import change_words
from tests.orchestrator.explain.values import measured, out_of_memory
from tests.orchestrator.report.pages import figures_of, words_of
from tests.orchestrator.report.values import ANSWER, START, Told, told_of


def test_the_headline_has_the_best_plan_and_its_gain_with_an_interval() -> None:
    page = report_page(*told_of())

    headline = words_of(page.split("<h1>")[1].join(["<main>", "</main>"]).split("</h1>")[0])
    assert headline.startswith("Trial 1 is best (fsdp zero3 micro 4")
    assert "50.0 ± 0.7 samples/s, peak 60.0 GiB, 75 % of the limit; " in headline
    # 50 / 20 samples/s
    assert "2.50 x (2.45 to 2.55) the speed of the baseline" in headline
    assert "not clear of" not in headline
    best, front = page.split('<tr class="best">')[1:]
    assert words_of(f"<main>{best}</main>").startswith("=1 fsdp zero3 micro 4")
    assert words_of(f"<main>{front}</main>").startswith("1 fsdp zero3 micro 4")
    close = words_of(
        report_page(*told_of([(START, measured(49.5, 40)), (ANSWER, measured(50, 60))]))
    )
    assert "1.01 x (0.99 to 1.03) the speed of the baseline" in close
    assert "not clear of it" in close


def changes(told: Told) -> dict[str, KnobEffect]:
    state, context, _ = told
    assert state.best is not None
    effects = single_changes(state.best, state.records, context)
    return {change_words([effect.change]): effect for effect in effects}


def test_each_knob_alone_is_measured_where_it_was_and_else_forecast() -> None:
    found = changes(told_of())

    assert set(found) == {
        "micro_batch 4 instead of 1",
        "micro_batch 4 instead of 2",
        "zero_stage 3 instead of 2",
        "checkpoint_ratio 0.0 instead of 0.5",
        "checkpoint_ratio 0.0 instead of 1.0",
    }
    assert found["micro_batch 4 instead of 1"].trial == 2
    failed = found["zero_stage 3 instead of 2"]
    assert (failed.trial, failed.outcome_kind, failed.ratio) == (4, "out_of_memory", None)
    untried = found["micro_batch 4 instead of 2"]
    assert (untried.trial, untried.ratio is not None) == (None, True)
    words = words_of(report_page(*told_of()))
    assert "micro_batch 4 instead of 1 2.00 x (1.96 to 2.04) +30.0 trial 2" in words
    assert "zero_stage 3 instead of 2 - - trial 4: out of memory" in words
    assert {effect.trial for effect in changes(told_of(forecasts=False)).values()} == {2, 3, 4}


def test_charts_show_every_trial() -> None:
    drawn = figures_of(report_page(*told_of()))

    points = {one["name"]: one for one in drawn["trials"]["data"]}
    assert len(points["measured"]["x"]) == 4
    assert points["out of memory"]["x"] == [80.0]  # on the memory limit
    assert (points["best"]["x"], points["best"]["y"]) == ([60.0], [50.0])
    assert points["Pareto front"]["x"] == sorted(points["Pareto front"]["x"])
    assert drawn["progress"]["data"][0]["y"][-1] == 50.0
    assert len(drawn["memory"]["data"][0]["x"]) == 3  # best, baseline, equal


def test_without_forecasts_it_says_why_and_tells_what_was_measured() -> None:
    page = report_page(*told_of(forecasts=False))

    words = words_of(page)
    assert "mymodel.py is not there" in words
    assert "forecast" not in {one["name"] for one in figures_of(page)["trials"]["data"]}


def test_a_sweep_in_which_nothing_fits_has_a_page() -> None:
    page = report_page(*told_of([(START, out_of_memory(90)), (ANSWER, out_of_memory(None))]))

    words = words_of(page)
    assert words.startswith("No plan is feasible; the closest is trial 0")
    assert "memory" not in figures_of(page)
