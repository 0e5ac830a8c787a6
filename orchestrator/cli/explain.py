"""`plimsoll explain`: reasons for the best plan, for a trial's outcome, or for an untried plan."""

from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator import api
from orchestrator.cli.console import print_error, print_line, table_console, write_text
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import STUDY, Json, JsonFile, TrialNumber, named_study
from orchestrator.cli.result import Result, result_to_json
from orchestrator.cli.trial import plan_in_file
from search_spaces.errors import UserError
from search_spaces.safety.files import is_file


def explain(
    words: Annotated[list[str] | None, STUDY] = None,
    trial: TrialNumber = None,
    plan: Annotated[list[str] | None, typer.Option("--plan", metavar="PLAN")] = None,
    out: JsonFile = None,
    as_json: Json = False,
) -> Result | None:
    """Explain why a plan won, how a trial ended, or why a plan was not tried."""
    study_argument, knobs = _study_and_knobs(words or [], plan)
    if trial is not None and knobs:
        raise UserError("--trial and --plan exclude each other: give one")
    study = named_study(study_argument)

    from orchestrator.study.reader import load_state

    state = load_state(study.spec, study.name)
    explanation = api.explain(state, trial, _values(knobs))
    if explanation is None:
        from orchestrator.report.sweep_text import best_sentence

        print_error(f"{best_sentence(state)}; --trial N explains how a trial ended")
        raise typer.Exit(ExitCode.NOTHING_FOUND)
    if not as_json:
        from orchestrator.report.explain_text import explanation_text
        from orchestrator.report.terminal import render_text

        table_console().print(render_text(explanation_text(explanation, state)))
    from orchestrator.report.document import explanation_document

    result = Result(kind="explain", content=lambda: explanation_document(explanation, state))
    if out is not None:
        write_text(out, result_to_json(result))
        print_line(f"written: {out}")
    return result


def _study_and_knobs(words: list[str], plan: list[str] | None) -> tuple[str | None, list[str]]:
    """Splits words into study and knobs: `--plan a=1 b=2` leaves b=2 among the words."""
    for text in plan or []:
        if text.isdecimal():
            raise UserError(
                f"--plan {text}: give knobs, such as micro_batch=32; for trial {text} use"
                f" --trial {text}"
            )
    more_knobs = [
        word
        for word in words
        if plan and "=" in word and "://" not in word and not is_file(Path(word))
    ]
    studies = [word for word in words if word not in more_knobs]
    if len(studies) > 1:
        raise UserError(
            f"one study is explained, but {' and '.join(studies)} were named;"
            " give a plan with --plan KNOB=VALUE ..."
        )
    return (studies[0] if studies else None), [*(plan or []), *more_knobs]


def _values(knobs: list[str]) -> dict[str, Any]:
    """Returns the values of knobs that --plan names, or those of the plan in its file."""
    from orchestrator.explain.context import knob_args

    plan = plan_in_file(knobs[0]) if len(knobs) == 1 else None
    return knob_args(knobs) if knobs and plan is None else plan.as_dict() if plan else {}
