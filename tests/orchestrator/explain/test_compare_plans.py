"""Comparison of two trials of a study."""

from __future__ import annotations

import pytest
from rich.console import Console

from orchestrator.explain.compare import compare_plans
from orchestrator.report.compare_text import render_plans
from orchestrator.report.document import comparison_document
from search_spaces.errors import StudyError
from tests.orchestrator.explain.values import a_plan, a_state, measured, out_of_memory

STATE = a_state(
    [
        (a_plan(), measured(50.0, 40)),
        (a_plan(micro_batch=4), measured(60.0, 45)),
        (a_plan(micro_batch=2), measured(50.5, 40.5)),
        (a_plan(zero_stage=2), out_of_memory(90)),
    ]
)


def test_speeds_and_peaks_that_differ_beyond_noise() -> None:
    told = compare_plans(STATE, (0, 1))

    assert told.ratio is not None
    assert told.ratio.value == pytest.approx(1.2)
    assert told.ratio.high == pytest.approx(1.2 * (1 + 2**0.5 * 0.015))
    assert (told.speeds_differ, told.peaks_differ) == (True, True)
    assert (told.first.is_best, told.second.is_best) == (False, True)
    assert [(k.name, k.first, k.second, k.follows) for k in told.knobs] == [
        ("micro_batch", 1, 4, False),
        ("accumulation", 8, 2, True),
    ]
    assert [(p.name, p.first) for p in told.phases][1] == ("forward", pytest.approx(16 / 50 * 0.3))


def test_what_is_within_noise() -> None:
    """The intervals 50 and 50.5 ± 1.5 % overlap; the peaks differ by 0.5 % of 80 GiB."""
    told = compare_plans(STATE, (0, 2))

    assert (told.speeds_differ, told.peaks_differ) == (False, False)


def test_what_was_not_measured_cannot_be_compared() -> None:
    told = compare_plans(STATE, (3, 0))

    assert (told.ratio, told.speeds_differ, told.peaks_differ) == (None, None, None)
    assert told.phases == ()


def test_a_trial_against_itself_differs_in_nothing() -> None:
    told = compare_plans(STATE, (1, 1))

    assert told.knobs == ()
    assert told.speeds_differ is False


def test_a_trial_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(StudyError, match="no finished trial 9"):
        compare_plans(STATE, (0, 9))


@pytest.mark.parametrize("numbers", [(0, 1), (0, 2), (3, 0), (1, 1)])
def test_in_words_and_as_json(numbers: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    told = compare_plans(STATE, numbers)
    Console(width=110).print(render_plans(told))
    said = " ".join(capsys.readouterr().out.split())

    assert comparison_document(told)["compares"] == "plans"
    words = {
        (0, 1): "trial 1 has 1.20 x (1.17 to 1.23) the speed of trial 0, beyond noise",
        (0, 2): "not beyond noise: their intervals overlap",
        (3, 0): "no speed comparison: not both were measured",
        (1, 1): "the plans are identical",
    }
    assert words[numbers] in said
