"""`plimsoll report`: the table, from the study alone."""

from __future__ import annotations

from orchestrator.cli.console import OptionalSpecPath, page, ui_hint
from orchestrator.latest import spec_and_name
from orchestrator.stored import load_state


def report(spec_path: OptionalSpecPath = None) -> None:
    """Print the table of a sweep that has run."""
    spec, name = spec_and_name(spec_path)

    from orchestrator.report import render_report

    state = load_state(spec, name)
    page().print(render_report(state, ui_hint(spec, spec_path)))
