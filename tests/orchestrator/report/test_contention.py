"""Contention between trials that ran side by side, measured by validations that ran alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.state import SweepState
from orchestrator.report.sweep_text import contention_sentence
from tests.orchestrator.records import make_state
from tests.outcomes import make_measured


def after(alone: float, *, apart: bool = False, validated: bool = True) -> SweepState:
    """Makes two trials of 40 samples/s +- 1.5 %, side by side or not, and a validation."""
    state = make_state([make_measured(40.0), make_measured(40.0)])
    first, second = state.records
    second = replace(second, started_at=first.started_at + 2, ended_at=first.ended_at + 2)
    if apart:
        second = replace(second, started_at=first.ended_at, ended_at=first.ended_at + 10)
    validation = replace(second, validation=True, outcome=make_measured(alone))
    return replace(state, records=(first, second), validations=(validation,) if validated else ())


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (
            40.4,
            "each other down beyond their intervals: alone, trial 1's plan ran at 1.01",
        ),
        (
            50.0,
            "slowed each other down: alone, trial 1's plan ran at 1.25 x (1.22 to 1.28) its speed",
        ),
        (30.0, "did not slow each other down beyond their intervals: alone"),
    ],
)
def test_a_validation_tells_what_others_did_to_its_trial(alone: float, words: str) -> None:
    assert words in contention_sentence(after(alone))
    assert "contention between them is unknown" in contention_sentence(after(50.0, validated=False))
