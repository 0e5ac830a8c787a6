"""Comparison of two studies, against values worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.core.state import SweepState
from orchestrator.explain.compare import StudyComparison, compare_studies
from orchestrator.report.compare_text import render_studies
from orchestrator.report.document import comparison_document
from search_spaces.plan import Plan
from search_spaces.trial import Fingerprint, Outcome
from tests.orchestrator.explain.values import a_plan, a_state, measured, out_of_memory
from tests.outcomes import CPU_FINGERPRINT

PLANS = tuple(
    a_plan(micro_batch=micro, checkpoint_ratio=ratio) for ratio in (0.0, 1.0) for micro in (1, 2, 4)
)


def state_of(
    tried: Sequence[tuple[Plan, Outcome]], seen: Fingerprint = CPU_FINGERPRINT, **sections: Any
) -> SweepState:
    state = a_state(tried, **sections)
    return replace(state, records=tuple(replace(r, fingerprint=seen) for r in state.records))


def rates(*values: float, gib: float = 40) -> list[tuple[Plan, Outcome]]:
    """Returns the first plans with these speeds."""
    return [(plan, measured(value, gib)) for plan, value in zip(PLANS, values, strict=False)]


def said(told: StudyComparison, capsys: pytest.CaptureFixture[str]) -> str:
    Console(width=110).print(render_studies(told))
    return " ".join(capsys.readouterr().out.split())


def test_plans_measured_in_both() -> None:
    told = compare_studies(state_of(rates(10, 20, 30, 40)), state_of(rates(20, 41, 59, 70)))
    found = told.agreement

    assert found is not None
    assert (found.plans, found.differing) == (4, 4)
    ratios = [2.0, 2.05, 59 / 30, 1.75]
    assert found.ratio == pytest.approx((59 / 30 + 2.0) / 2)  # the median of four
    assert (found.slowest, found.fastest) == (min(ratios), pytest.approx(max(ratios)))
    assert found.peak_ratio == 1.0
    assert found.tau == pytest.approx(1.0)
    assert found.p_value == pytest.approx(2 / 24)  # of 24 orders two are so far from 0
    # the fastest of the first goes first
    assert [pair.first.trial for pair in told.pairs] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("second", "tau"),
    [
        ((40, 30, 20, 10), -1.0),
        ((10, 20, 40, 30), 2 / 3),  # one pair of six the other way round
        ((20, 10, 40, 30), 1 / 3),
    ],
)
def test_kendalls_tau_counts_pairs(second: tuple[float, ...], tau: float) -> None:
    told = compare_studies(state_of(rates(10, 20, 30, 40)), state_of(rates(*second)))

    assert told.agreement is not None
    assert told.agreement.tau == pytest.approx(tau)


@pytest.mark.parametrize("values", [(10.0, 20.0), (30.0, 30.0, 30.0)])
def test_few_plans_or_equal_ones_have_no_order(values: tuple[float, ...]) -> None:
    told = compare_studies(state_of(rates(*values)), state_of(rates(*values)))

    assert told.agreement is not None
    assert (told.agreement.tau, told.agreement.p_value) == (None, None)
    assert told.agreement.differing == 0


def test_what_one_side_did_not_measure_is_shown_and_not_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = state_of([(PLANS[0], measured(10, 40)), (PLANS[1], out_of_memory(90))])
    second = state_of([*rates(11, 21), (PLANS[4], measured(5, 40))])
    told = compare_studies(first, second)

    assert [pair.ratio is None for pair in told.pairs] == [False, True]
    assert told.agreement is not None
    assert told.agreement.plans == 1
    assert (told.only_first, told.only_second) == (0, 1)
    assert "out of memory" in said(told, capsys)


def test_answers_are_held_against_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    told = compare_studies(state_of(rates(10, 20)), state_of(rates(40, 30)))

    assert [(one.name, one.first, one.second) for one in told.best_plans] == [("micro_batch", 2, 1)]
    assert told.ratio is not None
    assert told.ratio.value == pytest.approx(2.0)
    assert told.speeds_differ is True
    words = (
        "the best plan of demo (B) has 2.00 x (1.96 to 2.04) the speed of the best plan of demo (A)"
    )
    assert words in said(told, capsys)


def test_environments_that_differ() -> None:
    other = replace(
        CPU_FINGERPRINT,
        device_name="EPYC 9654",
        hosts=2,
        versions=(("torch", "2.14.0"), ("triton", "3.9")),
    )
    told = compare_studies(state_of(rates(10)), state_of(rates(10), other))

    assert {one.name: (one.first, one.second) for one in told.environment} == {
        "device_name": ("Xeon Platinum 8488C", "EPYC 9654"),
        "hosts": (1, 2),
        "ray": ("2.60.0", None),
        "torch": ("2.13.0", "2.14.0"),
        "triton": (None, "3.9"),
    }
    assert compare_studies(state_of(rates(10)), state_of(rates(10))).environment == ()


def test_specifications_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    first = state_of(rates(10), tracking={"uri": "http://ann:secret@host/"})
    other = {"global_batch": 64, "sequence_length": 2048, "learning_rate": 0.5}
    second = state_of(rates(10), train=other, study={"folder": "elsewhere", "seed": 3})
    told = compare_studies(first, second)
    keys = {one.name: (one.first, one.second) for one in told.specification}

    assert keys.keys() == {"train.learning_rate", "study.seed", "tracking.uri"}
    assert keys["study.seed"] == (0, 3)
    assert told.same_job is False
    words = said(told, capsys)
    assert "their speeds are not comparable" in words
    assert "secret" not in words + json.dumps(comparison_document(told))


def test_nothing_in_common(capsys: pytest.CaptureFixture[str]) -> None:
    lost = [(plan, out_of_memory(90)) for plan in PLANS[2:4]]
    told = compare_studies(state_of(rates(10, 20)), state_of(lost), ("", "a note"))
    words = said(told, capsys)

    assert (told.pairs, told.agreement, told.ratio, told.best_plans) == ((), None, None, ())
    assert "no plan is feasible" in words
    assert "note: a note" in words
    assert "none; 2 plans only in demo (A), 2 only in demo (B)" in words


def test_many_plans_are_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    many = [(a_plan(bucket_mib=25 + at, zero_stage=0), measured(10 + at, 40)) for at in range(20)]
    told = compare_studies(state_of(many), state_of(many))

    assert len(told.pairs) == 20
    assert "... and 8 more" in said(told, capsys)
    assert len(comparison_document(told)["pairs"]) == 20
