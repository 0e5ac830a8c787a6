"""`plimsoll diff`: two plans of a study, or two studies, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api import find_study
from orchestrator.cli.completion import complete_study, complete_trial
from orchestrator.cli.console import page, say, write_text
from orchestrator.cli.options import Json, JsonFile
from orchestrator.cli.result import Result, result_to_json
from search_spaces.errors import UserError

if TYPE_CHECKING:
    from orchestrator.explain.compare import PlanComparison, StudyComparison


def diff(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A] [B]",
            help="Studies: specifications, folders, names, or databases (SQLite files or URLs).",
            autocompletion=complete_study,
        ),
    ] = None,
    trials: Annotated[
        list[int] | None,
        typer.Option(
            "--trial",
            metavar="N",
            min=0,
            help="Given twice: two trials of the one study A, else of the latest here.",
            autocompletion=complete_trial,
        ),
    ] = None,
    out: JsonFile = None,
    as_json: Json = False,
) -> Result:
    """Say what differs between two plans of a study, or between two studies."""
    compared = _plans(studies or [], trials) if trials else _studies(studies or [])

    from orchestrator.explain.compare import PlanComparison
    from orchestrator.report.compare_text import render_plans, render_studies
    from orchestrator.report.document import document

    if not as_json:
        shown = (
            render_plans(compared)
            if isinstance(compared, PlanComparison)
            else render_studies(compared)
        )
        page().print(shown)
    result = Result(kind="diff", content=lambda: document(compared))
    if out is not None:
        write_text(out, result_to_json(result))
        say(f"written: {out}")
    return result


def _plans(named: list[str], numbers: list[int]) -> PlanComparison:
    from orchestrator.explain.compare import compare_plans
    from orchestrator.study.reader import load_state

    if len(numbers) != 2:
        raise UserError(
            f"two trials are compared, and {len(numbers)} named: give --trial N --trial M"
        )
    if len(named) > 1:
        raise UserError("--trial compares two trials of one study: name one study, or none")
    found = find_study(named[0] if named else None)
    return compare_plans(load_state(found.spec, found.name), (numbers[0], numbers[1]))


def _studies(named: list[str]) -> StudyComparison:
    from orchestrator.explain.compare import compare_studies
    from orchestrator.study.reader import load_state

    if len(named) != 2:
        raise UserError(
            f"two studies are compared, and {len(named)} named: give A and B, or --trial N"
            " --trial M for two trials of one study"
        )
    first, second = (find_study(one) for one in named)
    return compare_studies(
        load_state(first.spec, first.name),
        load_state(second.spec, second.name),
        (first.note, second.note),
    )
