"""The report as a page: figures worked out by hand, everything counted once, nothing fetched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.core.state import SweepState
from orchestrator.report_page import Told, report_page
from orchestrator.report_page.plan_charts import change_words, lost
from orchestrator.report_page.told import ablation, accounting, comparisons, loss_curves
from search_spaces.outcome import Outcome
from search_spaces.plan import Plan
from tests.orchestrator.explaining.values import (
    a_ground,
    a_plan,
    a_state,
    measured,
    out_of_memory,
)
from tests.orchestrator.records import make_record

START = a_plan(zero_stage=2)
ANSWER = a_plan(micro_batch=4)
TRIED: tuple[tuple[Plan, Outcome], ...] = (
    (START, measured(20.0, 40)),
    (ANSWER, measured(50.0, 60)),
    (a_plan(), measured(25.0, 30)),  # the answer with micro-batch 1
    (a_plan(micro_batch=4, checkpoint_ratio=1.0), measured(49.5, 35)),  # equal
    (a_plan(zero_stage=2, micro_batch=4), out_of_memory(90)),
)


def told_of(tried: Sequence[tuple[Plan, Outcome]] = TRIED, *, forecasts: bool = True) -> Told:
    state = a_state(tried)
    if forecasts:
        return Told(state=state, ground=a_ground(state))
    return Told(state=state, ground=None, note="mymodel.py is not there")


def figures_of(page: str) -> dict[str, Any]:
    """The data of its charts."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert found is not None
    figures: dict[str, Any] = json.loads(found.group(1))
    return figures


def words_of(page: str) -> str:
    """What a person reads of it, without charts."""
    body = page.split("<main>")[1].split("</main>", maxsplit=1)[0]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_answer_is_two_sentences_with_what_it_gains() -> None:
    page = report_page(told_of())

    headline = words_of(page.split("<h1>")[1].join(["<main>", "</main>"]).split("</h1>")[0])
    assert headline.startswith("Trial 1 is the answer, not proven: fsdp zero3 micro 4")
    assert "50.0 ± 0.7 samples/s with a peak of 60.0 GiB, 75 % of the limit." in headline
    # 50 / 20 samples/s and 60 / 40 GiB
    gain = "That is 150 % faster, with 50 % more memory than the plan that one would start with."
    assert headline.endswith(gain)


def test_the_answer_is_held_against_the_start_and_its_equals() -> None:
    start, equal = comparisons(told_of())

    assert (start.other.number, equal.other.number) == (0, 3)
    assert start.faster is not None
    assert start.faster.value == pytest.approx(1.5)
    assert start.saved == pytest.approx(-0.5)
    assert equal.faster is not None
    assert equal.faster.value == pytest.approx(50 / 49.5 - 1)
    assert equal.saved == pytest.approx(1 - 60 / 35)


def test_what_equal_means_is_told_where_something_is() -> None:
    words = "whose intervals overlap that of the fastest"

    assert words in words_of(report_page(told_of()))
    assert words not in words_of(report_page(told_of(TRIED[:3])))


def test_a_figure_stays_on_one_line() -> None:
    assert '<td class="">20.0\u00a0±\u00a00.3</td>' in report_page(told_of())


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
    assert lost(found["micro_batch 4 → 1"]) == pytest.approx(-0.5)
    assert lost(found["checkpoint_ratio 0.0 → 1.0"]) == pytest.approx(-0.01)
    failed = found["zero_stage 3 → 2"]
    assert (failed.trial, failed.told, failed.ratio) == (4, "out_of_memory", None)
    untried = found["micro_batch 4 → 2"]
    assert (untried.trial, untried.ratio is not None) == (None, True)
    measured_alone = ablation(told_of(forecasts=False))
    assert {worth.trial for worth in measured_alone} == {2, 3, 4}


def test_every_combination_is_counted_once() -> None:
    told = told_of()
    assert told.ground is not None
    sized = told.ground.sized
    counts = accounting(told)

    combinations = len(sized.table) + sum(count for _, count in sized.ruled_out)
    assert sum(count.plans for count in counts) == combinations
    by_end = {(count.what, count.why): count.plans for count in counts}
    assert by_end["measured", ""] == 4
    assert by_end["tried", "out of memory"] == 1
    untried = sum(plans for (what, _), plans in by_end.items() if what == "not tried")
    assert untried == len(sized.table) - 5
    again = told_of((*TRIED, TRIED[0]))  # a plan that was tried twice is one plan
    assert sum(count.plans for count in accounting(again)) == combinations


def test_charts_show_every_trial() -> None:
    drawn = figures_of(report_page(told_of()))

    points = {one["name"]: one for one in drawn["trials"]["data"]}
    assert len(points["measured"]["x"]) == 4
    assert points["out of memory"]["x"] == [80.0]  # on the device's end
    assert (points["the answer"]["x"], points["the answer"]["y"]) == ([60.0], [50.0])
    assert points["front"]["x"] == sorted(points["front"]["x"])
    assert drawn["progress"]["data"][0]["y"][-1] == 50.0
    shown = {one["name"]: one["y"] for one in drawn["knobs"]["data"]}
    assert "micro_batch 4 → 1" in shown["measured"]
    assert "micro_batch 4 → 2" in [
        *shown.get("forecast", []),
        *shown.get("forecast, not sure to fit", []),
    ]
    assert len(drawn["memory"]["data"][0]["x"]) == 3  # answer, start, equal


def test_without_forecasts_it_says_why_and_tells_what_was_measured() -> None:
    page = report_page(told_of(forecasts=False))

    words = words_of(page)
    assert "mymodel.py is not there" in words
    assert "5 plans that were tried, each counted once" in words
    assert "forecast" not in {one["name"] for one in figures_of(page)["trials"]["data"]}


def test_a_sweep_in_which_nothing_fits_has_a_page() -> None:
    page = report_page(told_of([(START, out_of_memory(90)), (ANSWER, out_of_memory(None))]))

    words = words_of(page)
    assert words.startswith("No plan is feasible; nearest is trial 0")
    assert "memory" not in figures_of(page)


def proven(losses: tuple[float, ...]) -> SweepState:
    """Trial 1 with a proof that has these losses, where trial 0 had 3, 2 and 1."""
    kept = replace(measured(20.0, 40), losses=(3.0, 2.0, 1.0))
    tried = [(START, kept), (ANSWER, replace(measured(50.0, 60), losses=(3.0, 2.0, 1.0)))]
    run = make_record(1, ANSWER, replace(measured(50.0, 60), losses=losses))
    return a_state(tried, [replace(run, proof=True)], proof={"enabled": True})


def test_losses_of_the_proof_are_drawn_on_those_of_the_reference() -> None:
    state = proven((3.0, 2.0, 1.0))
    curves = loss_curves(state)

    assert curves is not None
    assert (curves.ours, curves.theirs, curves.reference) == ((3.0, 2.0, 1.0), (3.0, 2.0, 1.0), 0)
    page = report_page(Told(state=state, ground=None))
    assert "Trial 1 is the answer, proven in workers of its own" in words_of(page)
    assert len(figures_of(page)["losses"]["data"]) == 2


def test_what_does_not_train_the_same_is_not_the_answer() -> None:
    state = proven((3.0, 2.5, 1.0))

    words = words_of(report_page(Told(state=state, ground=None)))
    assert not words.startswith("Trial 1 is the answer")
    assert "the proof of trial 1 failed: its losses are up to 17 % apart" in words.replace(
        "the proof of trial 1 failed: failed:", "the proof of trial 1 failed:"
    )
    assert loss_curves(state) is None


class _Loads(HTMLParser):
    """Addresses that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag in ("link", "img", "iframe", "object"):
            self.found.append(tag)


def test_nothing_is_fetched() -> None:
    page = report_page(told_of())
    parser = _Loads()
    parser.feed(page)

    assert not parser.found
    style = page.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(name=st.text(min_size=1, max_size=20))
@example(name="</script><img src=x onerror=alert(1)>")
def test_names_cannot_break_out_of_the_page(name: str) -> None:
    state = a_state(TRIED)
    model = state.spec.model.model_copy(update={"name": name})
    spec = state.spec.model_copy(update={"model": model})
    hostile = replace(state, study=name, spec=spec)
    parser = _Loads()

    page = report_page(Told(state=hostile, ground=None, note=name))
    parser.feed(page)

    assert not parser.found
    assert page.count("</script>") == 3


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# A frame is as narrow as a phone, which a window of a browser without a screen is not
_FRAME = """
<iframe src="report.html" width="{width}" height="900" style="border: 0"></iframe>
<script>
window.addEventListener("load", () => setTimeout(() => {{
  const inner = document.querySelector("iframe");
  const root = inner.contentDocument.documentElement;
  const drawn = inner.contentDocument.querySelectorAll(".chart .main-svg").length > 0;
  const sideways = root.scrollWidth - root.clientWidth;
  document.title = JSON.stringify([drawn, sideways, inner.contentWindow.failed || ""]);
}}, 1500));
</script>
"""
_WATCH = "<head><script>window.onerror = (message) => {{ window.failed = message; }};</script>"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_a_browser_draws_it_without_errors_and_without_scrolling_sideways(
    width: int, tmp_path: Path
) -> None:
    page = report_page(told_of()).replace("<head>", _WATCH.format())
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    (tmp_path / "frame.html").write_text(_FRAME.format(width=width))

    ran = subprocess.run(
        [
            *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1600,1000"),
            *("--allow-file-access-from-files", "--virtual-time-budget=10000", "--dump-dom"),
            f"file://{tmp_path / 'frame.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    found = re.search(r"<title>(\[.*?\])</title>", ran.stdout)
    assert found is not None, ran.stdout
    drawn, sideways, failed = json.loads(found.group(1).replace("&quot;", '"'))
    assert (drawn, sideways, failed) == (True, 0, "")
