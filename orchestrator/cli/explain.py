"""`plimsoll explain`: why the answer is what it is, and why other plans are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import complete_study
from orchestrator.cli.console import page, say, say_error, write_text
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json, JsonFile, TrialNumber, find
from orchestrator.cli.result import Result, result_to_json
from orchestrator.workspace import is_file
from search_spaces.errors import UserError

if TYPE_CHECKING:
    from orchestrator.core.state import SweepState
    from orchestrator.explain.context import ForecastContext
    from orchestrator.explain.untried import UntriedExplanation
    from orchestrator.report.document import Explanation


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY]",
            help="The study: its specification, folder, name, or database (a SQLite file or a"
            " URL); without it, the latest sweep here.",
            autocompletion=complete_study,
        ),
    ] = None,
    trial: TrialNumber = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            "--plan",
            metavar="KNOB=VALUE ...",
            help="Why this plan was not tried; the rest as the winner.",
        ),
    ] = None,
    out: JsonFile = None,
    as_json: Json = False,
) -> Result | None:
    """Say why the winner won, what happened to a trial, or why a plan was not tried."""
    study, knobs = _study_and_knobs(words or [], plan)
    if trial is not None and knobs:
        raise UserError("--trial and --plan are two questions: ask one of them")
    found = find(study)

    from orchestrator.study.reader import load_state

    state = load_state(found.spec, found.name)
    explained = _explained(state, trial, knobs)
    if explained is None:
        from orchestrator.report.sweep_text import answer

        say_error(f"{answer(state)}; --trial N says what happened to a trial")
        raise typer.Exit(ExitCode.NOTHING_FOUND)
    if not as_json:
        _show(explained)
    from orchestrator.report.document import document

    result = Result(kind="explain", content=lambda: document(explained))
    if out is not None:
        write_text(out, result_to_json(result))
        say(f"written: {out}")
    return result


def _study_and_knobs(words: list[str], plan: list[str] | None) -> tuple[str | None, list[str]]:
    """The study, and the knobs: `--plan a=1 b=2` leaves b=2 among the words.

    Raises:
        UserError: If there is more than one study, or `--plan` names a trial.
    """
    for text in plan or []:
        if text.isdecimal():
            raise UserError(
                f"--plan {text}: a plan is named by its knobs, such as micro_batch=32;"
                f" trial {text} by --trial {text}"
            )
    more = [
        word
        for word in words
        if plan and "=" in word and "://" not in word and not is_file(Path(word))
    ]
    studies = [word for word in words if word not in more]
    if len(studies) > 1:
        raise UserError(
            f"one study is explained, not {' and '.join(studies)};"
            " a plan is named by --plan KNOB=VALUE ..."
        )
    return (studies[0] if studies else None), [*(plan or []), *more]


def _explained(state: SweepState, number: int | None, asked: list[str]) -> Explanation | None:
    """The explanation; None if there is no winner to explain."""
    from orchestrator.explain.trial import explain_trial, trial_named
    from orchestrator.explain.winner import explain_best

    if asked:
        found = _untried(state, asked)
        if found.trial is None or found.verdict != "tried":
            return found
        number = found.trial
        say(found.reasons[0])
    if number is not None:
        record = trial_named(state, number)
        return explain_trial(state, record, *_ground(state, record.plan.accelerator))
    best = state.best
    if best is None:
        return None
    return explain_best(state, best, *_ground(state, best.plan.accelerator))


def _untried(state: SweepState, asked: list[str]) -> UntriedExplanation:
    from orchestrator.explain.context import forecast_context, knob_args
    from orchestrator.explain.untried import explain_untried

    wanted = knob_args(asked)
    like = (state.best or state.records[0]).plan
    kind = wanted.get("accelerator", like.accelerator)
    kinds = state.spec.cluster.accelerators
    if kind not in kinds and (kind or kinds):
        known = ", ".join(kinds) or "none"
        raise UserError(f"--plan accelerator={kind}: cluster.accelerators has {known}")
    return explain_untried(wanted, forecast_context(state, kind))


def _ground(state: SweepState, accelerator: str) -> tuple[ForecastContext | None, str]:
    """What explanations rest on; None and why, if nothing can be forecast here."""
    from orchestrator.explain.context import forecast_context

    try:
        return forecast_context(state, accelerator), ""
    except UserError as error:
        return None, " ".join(str(error).split())


def _show(explained: Explanation) -> None:
    from orchestrator.explain.trial import TrialExplanation
    from orchestrator.explain.untried import UntriedExplanation
    from orchestrator.explain.winner import BestExplanation
    from orchestrator.report.explain_text import render_best, render_trial, render_untried

    match explained:
        case BestExplanation():
            page().print(render_best(explained))
        case TrialExplanation():
            page().print(render_trial(explained))
        case UntriedExplanation():
            page().print(render_untried(explained))
