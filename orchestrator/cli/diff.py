"""`plimsoll diff`: comparison of two plans of a study, or of two studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api import find_study
from orchestrator.cli.completion import complete_study, complete_trial
from orchestrator.cli.console import print_line, table_console, write_text
from orchestrator.cli.options import Json, JsonFile
from orchestrator.cli.result import Result, result_to_json
from orchestrator.report.format import times_words
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
            help="Compare two trials of study A (default: the latest sweep here); give it twice.",
            autocompletion=complete_trial,
        ),
    ] = None,
    out: JsonFile = None,
    as_json: Json = False,
) -> Result:
    """Compare two plans of a study, or two studies."""
    comparison = _plans(studies or [], trials) if trials else _studies(studies or [])

    from orchestrator.explain.compare import PlanComparison
    from orchestrator.report.compare_text import render_plans, render_studies
    from orchestrator.report.document import comparison_document

    if not as_json:
        table_console().print(
            render_plans(comparison)
            if isinstance(comparison, PlanComparison)
            else render_studies(comparison)
        )
    result = Result(kind="diff", content=lambda: comparison_document(comparison))
    if out is not None:
        write_text(out, result_to_json(result))
        print_line(f"written: {out}")
    return result


def _plans(names: list[str], numbers: list[int]) -> PlanComparison:
    from orchestrator.explain.compare import compare_plans
    from orchestrator.study.reader import load_state

    if len(numbers) != 2:
        raise UserError(
            f"two trials are compared, but --trial was given {times_words(len(numbers))}: give"
            " --trial N --trial M"
        )
    if len(names) > 1:
        raise UserError("--trial compares two trials of one study: name one study, or none")
    study = find_study(names[0] if names else None)
    return compare_plans(load_state(study.spec, study.name), (numbers[0], numbers[1]))


def _studies(names: list[str]) -> StudyComparison:
    from orchestrator.explain.compare import compare_studies
    from orchestrator.study.reader import load_state

    if len(names) != 2:
        raise UserError(
            f"two studies are compared, but {len(names)} named: give A and B, or --trial N"
            " --trial M for two trials of one study"
        )
    first, second = (find_study(name) for name in names)
    return compare_studies(
        load_state(first.spec, first.name),
        load_state(second.spec, second.name),
        (first.note, second.note),
    )
