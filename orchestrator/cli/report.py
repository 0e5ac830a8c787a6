"""`plimsoll report`: the table, the page or the JSON document of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import page, say, ui_hint, write_text
from orchestrator.cli.options import Json, StudyName, find
from orchestrator.cli.result import Result, result_to_json


def report(
    study: StudyName = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write a page, which needs no network, instead.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write to FILE: .html a page, .json JSON."),
    ] = None,
    as_json: Json = False,
) -> Result | None:
    """Print the table of a sweep that has run, or write its report as a page."""
    found = find(study)
    from orchestrator.study.reader import load_state

    state = load_state(found.spec, found.name)

    from orchestrator.report.document import report_document
    from orchestrator.report.sweep_text import render_report

    result = Result(kind="report", content=lambda: report_document(state))
    file = out or (Path(f"{found.name}-report.html") if html else None)
    if file is None:
        if not as_json:
            page().print(render_report(state, ui_hint(found.spec, study)))
        return result
    if file.suffix == ".json" and not html:
        write_text(file, result_to_json(result))
    else:
        from orchestrator.report.page_data import report_data
        from orchestrator.report.sweep_page import report_page

        write_text(file, report_page(report_data(state)))
    say(f"written: {file}")
    return result
