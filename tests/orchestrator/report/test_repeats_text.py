"""Words about plans that were measured again."""

import html
from dataclasses import replace

from orchestrator.core.reasons import Remeasures
from orchestrator.core.state import SweepState
from orchestrator.report.sweep_document import report_page
from orchestrator.report.sweep_text import equals_sentence, evidence_sentences, repeats_sentence
from orchestrator.tracking.mlflow_artifacts import best_markdown
from search_spaces.trial import Outcome
from tests.orchestrator.core.values import state_after
from tests.outcomes import make_measured


def again(state: SweepState, number: int, outcome: Outcome, after: float = 1.0) -> SweepState:
    trial = state.records[number]
    begin = state.records[-1].ended_at + after
    repeat = replace(
        trial,
        number=len(state.records),
        reason=Remeasures(trial=number),
        outcome=outcome,
        started_at=begin,
        ended_at=begin + 5,
    )
    return replace(state, records=(*state.records, repeat))


def searched(**objective: object) -> SweepState:
    rates = (make_measured(20.0), make_measured(40.0, 0.8), make_measured(39.0, 0.4))
    return state_after(rates, objective=objective)


def test_the_answer_says_how_often_and_against_whom() -> None:
    state = searched()
    for number, rate in ((1, 40.0), (2, 39.0), (1, 40.0)):
        state = again(state, number, make_measured(rate))

    # three and two intervals of 1.5 %: 1.5 x sqrt(1/3 + 1/2)
    assert repeats_sentence(state) == (
        "measured 3 times, +2.6 % (± 1.4) against trial 2, measured twice; trials of the same plan"
        " differ by 0.5 %: a quiet machine"
    )


def test_a_noisy_machine_is_called_so() -> None:
    state = searched()
    for number, rate in ((1, 30.0), (2, 42.0), (1, 44.0)):
        state = again(state, number, make_measured(rate))

    assert " %: a noisy machine" in repeats_sentence(state)


def test_an_answer_that_is_surer_than_the_fastest_says_so() -> None:
    state = searched()
    for number, rate in ((1, 36.0), (2, 36.6), (2, 36.6), (2, 39.0)):
        state = again(state, number, make_measured(rate))

    words = equals_sentence(state)
    assert words.endswith(
        "; trial 2, measured 4 times, is the surest of them, though 0.4 % slower than the fastest"
        " of them"
    )


def test_the_page_and_mlflow_have_the_evidence_of_the_terminal() -> None:
    state = searched()
    for number, rate in ((1, 40.0), (2, 39.0), (0, 18.0)):
        state = again(state, number, make_measured(rate), after=600)
    evidence = list(evidence_sentences(state))

    assert repeats_sentence(state) in evidence
    page = html.unescape(report_page(state))
    told = best_markdown(state)
    for sentence in evidence:
        assert sentence in page
        assert sentence in told
