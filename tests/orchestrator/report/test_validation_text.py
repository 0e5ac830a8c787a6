"""Texts about validations in the views, the report and MLflow."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from orchestrator.core.events import SweepEnded, TrialEnded, TrialStarted
from orchestrator.core.reasons import AllTried, Validates
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, advance
from orchestrator.report.labels import validation_sentences, validation_words
from orchestrator.report.live import dashboard, lines
from orchestrator.report.sweep_document import render_report
from orchestrator.tracking.mlflow_artifacts import best_markdown
from orchestrator.tracking.mlflow_fields import validation_metrics, validation_tags
from tests.orchestrator.core.test_validation import (
    after_validation,
    searched,
    validation_of,
    validation_run,
)
from tests.orchestrator.records import BEGAN
from tests.outcomes import make_measured, make_oom

HOLDS = make_measured(39.0, 0.55, validation=validation_run())
ALL = (
    "14 steps at 39.0 ± 0.6 samples/s, peak 0.275 GiB, 55 % of the limit; it included 4 steps on"
    " the longest samples, an evaluation on them and a checkpoint of 0.023 GiB in 0.2 s"
)
SAME = "losses match trial 0 exactly over 10 steps (tolerance 0.1 % in fp32)"
FAILED = "failed: out of device memory in evaluation, wanted 130 % of the limit"


def failing_then_validated() -> SweepState:
    state = after_validation(searched(), 2, make_oom(phase="evaluation"))
    return after_validation(state, 1, HOLDS)


def reported(state: SweepState, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render_report(state, ""))
    return console.export_text()


def test_losses_are_told_with_what_may_be() -> None:
    losses = tuple(loss * (1 + 1e-5) for loss in make_measured().losses)
    state = after_validation(searched(), 2, replace(HOLDS, losses=losses))
    assert (
        "losses match trial 0 within 0.001 % over 10 steps (tolerance 0.1 % in fp32)"
        in validation_words(state.validations[0], state)
    )
    alone = after_validation(searched([make_oom(), HOLDS]), 1, HOLDS)
    assert "losses not compared: no other lossless plan was measured" in validation_words(
        alone.validations[0], alone
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            searched(),
            ["not validated yet: `plimsoll tune` validates the best plan after the search"],
        ),
        (searched(validation={"enabled": False}), ["not validated: validation.enabled is false"]),
        (
            after_validation(
                searched(validation={"enabled": True, "repeats": 0, "tries": 1}), 2, make_oom()
            ),
            [
                "not validated: 1 validation failed",
                "the validation of trial 2 failed: out of device memory",
            ],
        ),
        (
            failing_then_validated(),
            ["validation in a fresh worker group passed", f"the validation of trial 2 {FAILED}"],
        ),
        (searched([make_oom()]), []),
    ],
    ids=["not yet", "off", "failed", "validated", "nothing found"],
)
def test_whether_the_answer_is_validated(state: SweepState, said: Sequence[str]) -> None:
    told = list(validation_sentences(state))

    assert len(told) == len(said)
    assert all(line.startswith(words) for line, words in zip(told, said, strict=True))


def test_the_report_has_the_validation_and_names_the_equals() -> None:
    state = after_validation(searched(), 2, HOLDS)
    text = " ".join(reported(state).split())

    assert max(map(len, reported(state).splitlines())) <= 80
    assert "trial 2 is best" in text
    assert f"validation in a fresh worker group passed: {ALL}; {SAME}" in text
    assert "statistically equal to the best (2 plans: trials 1, 2); trial 2 leaves" in text
    table = reported(state, 160).partition("Best plans")[2]
    (row,) = (line for line in table.splitlines() if "(validated)" in line)
    assert row.split()[0] == "=2"


def test_mlflow_says_it_too() -> None:
    state = failing_then_validated()
    text = best_markdown(state)

    assert "- validation in a fresh worker group passed" in text
    assert f"- the validation of trial 2 {FAILED}" in text
    failed, held = state.validations
    assert validation_tags(state.records[1], state) == {"kind": "trial"}
    assert validation_tags(held, state) | {"detail": ""} == {
        "kind": "validation",
        "validation_of": "1",
        "validation_holds": "true",
        "detail": "",
    }
    assert validation_tags(failed, state)["validation_holds"] == "false"
    assert validation_tags(failed, state)["detail"] == FAILED
    assert validation_metrics(state.records[1], state) == {}
    assert validation_metrics(failed, state) == {}
    held_metrics = validation_metrics(held, state)
    assert (held_metrics["worst_steps"], held_metrics["loss_difference"]) == (4.0, 0.0)


def started(state: SweepState, number: int) -> tuple[TrialStarted, SweepState]:
    event = TrialStarted(
        number=number,
        plan=state.records[number].plan,
        reason=Validates(trial=number),
        deadline_seconds=180.0,
        at=BEGAN + 120,
        validation=True,
    )
    return event, advance(state, event)


def test_plain_lines_of_validations() -> None:
    state = searched()
    begun, state = started(state, 2)
    (line,) = lines(begun, state)
    assert line.startswith("validation of trial 2 starts in a fresh worker group: fsdp zero2 micro")

    failed = ended(state, 2, make_oom(phase="evaluation"))
    state = advance(state, failed)
    (line,) = lines(failed, state)
    assert line == f"the validation of trial 2 {FAILED}; trial 1 is validated instead"

    held = ended(state, 1, HOLDS)
    state = advance(state, held)
    (line,) = lines(held, state)
    assert line == f"the validation of trial 1 passed: {ALL}; {SAME}"

    (line,) = lines(SweepEnded(reason=AllTried(plans=2), at=BEGAN), state)
    assert "3 measured; best is trial 1, validated: ddp micro" in line


def ended(state: SweepState, number: int, outcome: Any) -> TrialEnded:
    validation: Record = validation_of(state, number, outcome)
    return TrialEnded(record=validation, at=validation.ended_at)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 40)])
def test_the_live_picture_of_validations(width: int, height: int) -> None:
    _, state = started(after_validation(searched(), 2, make_oom(phase="evaluation")), 1)
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(dashboard(state, now=BEGAN + 130, width=width, height=height))
    shown = console.export_text()

    assert len(shown.splitlines()) <= height
    assert max(map(len, shown.splitlines())) <= width
    assert "now        validation of trial 1 ddp micro" in shown
    assert "10 s of at most 3 min" in shown
    assert "validation of trial 2 failed: out of device memory" in shown
    assert "3 of 24" in shown
