"""`plimsoll report`: a study as a table, a page or JSON."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import print_line, table_console, ui_hint, write_text
from orchestrator.cli.options import Json, StudyName, named_study
from orchestrator.cli.result import Result, result_to_json


def report(
    study: StudyName = None,
    html: Annotated[bool, typer.Option("--html")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE")] = None,
    as_json: Json = False,
) -> Result | None:
    """Print the report of a sweep, or write it as a page or JSON."""
    named = named_study(study)
    from orchestrator.study.reader import load_state

    state = load_state(named.spec, named.name)

    from orchestrator.explain.context import forecasts_or_reason
    from orchestrator.report.document import report_document
    from orchestrator.report.sweep_document import render_report, report_page

    result = Result(kind="report", content=lambda: report_document(state))
    file = out or (Path(f"{named.name}-report.html") if html else None)
    if file is None:
        if not as_json:
            table_console().print(render_report(state, ui_hint(named.spec, study)))
        return result
    if file.suffix == ".json" and not html:
        write_text(file, result_to_json(result))
    else:
        write_text(file, report_page(state, *forecasts_or_reason(state)))
    print_line(f"written: {file}")
    return result
