"""`plimsoll report`: the table, or the page, from the study alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import OptionalSpecPath, page, say, ui_hint, write_text
from orchestrator.latest import spec_and_name
from orchestrator.stored import load_state


def report(
    spec_path: OptionalSpecPath = None,
    html: Annotated[
        bool, typer.Option("--html", help="Write a page, which needs no network, instead.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to, with --html.")
    ] = None,
) -> None:
    """Print the table of a sweep that has run, or write its report as a page."""
    spec, name = spec_and_name(spec_path)
    state = load_state(spec, name)
    if html or out is not None:
        from orchestrator.report_page import report_page, told_of

        file = out or Path(f"{name}-report.html")
        write_text(file, report_page(told_of(state)))
        say(f"written: {file}")
        return

    from orchestrator.report import render_report

    page().print(render_report(state, ui_hint(spec, spec_path)))
