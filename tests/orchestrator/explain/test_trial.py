"""Explanations of trials, and the single changes that fix a memory shortage."""

import pytest
from rich.console import Console

from orchestrator.core.validation import failures
from orchestrator.explain.trial import (
    LIKELY,
    Shortage,
    TrialExplanation,
    explain_trial,
    trial_named,
)
from orchestrator.report.explain_text import (
    explanation_text,
    fix_words,
    fixes_sentence,
    shortage_sentences,
    standing_sentences,
)
from orchestrator.report.terminal import render_text
from search_spaces.plan import Plan
from search_spaces.specification.schema import GIB
from search_spaces.trial import Outcome
from tests.orchestrator.explain.values import a_ground, a_plan, a_state, measured, out_of_memory
from tests.outcomes import every_outcome

LOST = a_plan(zero_stage=2, micro_batch=4)


def explanation_of(
    number: int, *tried: tuple[Plan, Outcome], blind: bool = False
) -> TrialExplanation:
    state = a_state(tried)
    ground = None if blind else a_ground(state)
    return explain_trial(state, trial_named(state, number), ground)


def shortage_of(number: int, *tried: tuple[Plan, Outcome]) -> Shortage:
    found = explanation_of(number, *tried).shortage
    assert found is not None
    return found


def test_an_answer_and_its_competitors() -> None:
    tried = (
        (a_plan(), measured(50.0, 40)),
        (a_plan(micro_batch=2), measured(49.9, 60)),  # equal
        (a_plan(micro_batch=4), measured(70.0, 79)),  # over the line of 76 GiB
        (a_plan(zero_stage=2), measured(25.0, 40)),
    )
    told = [explanation_of(number, *tried, blind=True) for number in range(4)]

    assert [one.rank for one in told] == [1, 2, None, 3]
    assert [one.standing for one in told] == ["best", "tied", "infeasible", "worse"]
    reasons = [next(standing_sentences(one, a_state(tried))) for one in told]
    assert reasons[0] == "it is the best plan"
    assert "statistically equal to trial 0" in reasons[1]
    assert "98.8 % of the limit leaves less than 5 % free" in reasons[2]
    assert "reaches 25.00 (24.62 to 25.37), and trial 0 reaches 50.00" in reasons[3]
    assert told[3].ratio is not None
    assert told[3].ratio.value == pytest.approx(0.5)
    assert [(c.knob, c.value, c.other_value) for c in told[3].changes] == [("zero_stage", 3, 2)]


def test_measured_and_forecast_remedies_are_told_apart() -> None:
    """LOST has five neighbours: ZeRO-3, micro-batches 1 and 2, half and all recomputed."""
    fitted = a_plan(zero_stage=2, micro_batch=2)
    full = a_plan(zero_stage=2, micro_batch=4, checkpoint_ratio=1.0)
    short = shortage_of(
        0,
        (LOST, out_of_memory(100)),
        (fitted, measured(30.0, 79)),  # fits, and goes over the line
        (a_plan(zero_stage=2, micro_batch=4, checkpoint_ratio=0.5), out_of_memory(90)),
        (a_plan(micro_batch=4), out_of_memory(95)),  # ZeRO-3
    )
    found = {(one.change.knob, one.change.other_value): one for one in short.fixes}

    assert short.tried == 5
    assert short.ran_out == 2
    assert ("zero_stage", 3) not in found
    assert ("checkpoint_ratio", 0.5) not in found
    validated = found["micro_batch", 2]
    assert (validated.trial, validated.fits, validated.keeps_headroom) == (1, 1.0, False)
    assert validated.measured is not None
    assert validated.peak_bytes == 79 * GIB
    hoped = found["checkpoint_ratio", 1.0]
    assert (hoped.trial, hoped.measured, hoped.plan) == (None, None, full)
    assert hoped.fits >= LIKELY
    rates = [one.samples_per_second.value for one in short.fixes]
    assert rates == sorted(rates, reverse=True)
    assert "1 of the values measured to fit" in fixes_sentence(short)
    assert "2 plans also ran out of memory" in fixes_sentence(short)
    rows = {fix_words(fix)[0]: fix_words(fix) for fix in short.fixes}
    assert rows["micro_batch 2"][2:] == ("30.0 ± 0.4", "79.0 (over usable memory)", "trial 1")


def test_a_plan_that_the_space_of_today_lacks_is_told_all_the_same() -> None:
    odd = a_plan(zero_stage=2, micro_batch=8, accumulation=1)
    short = shortage_of(0, (odd, out_of_memory(120)))

    assert short.forecast is not None
    assert {one.change.knob for one in short.fixes} <= {"micro_batch"}
    illegal = shortage_of(0, (a_plan(zero_stage=2, data=4), out_of_memory(120)))
    assert illegal.forecast is None  # half of the global batch
    assert "the plan is no longer valid" in " ".join(shortage_sentences(illegal))


def test_every_ending_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = every_outcome()
    tried = [
        (a_plan(bucket_mib=25 + at, zero_stage=0), outcome) for at, outcome in enumerate(outcomes)
    ]
    state = a_state(tried)
    for record in state.records:
        Console(width=110).print(
            render_text(
                explanation_text(explain_trial(state, record, None, "no model here"), state)
            )
        )
    said = capsys.readouterr().out

    assert "ValueError: [no head] size given" in said
    assert "Traceback (most recent call last)" in said
    assert "note: there are no forecasts: no model here" in said
    assert not failures((), state.records, state.space.baseline, state.spec)
