"""`plimsoll report`: the table, from the study alone."""

from __future__ import annotations

from orchestrator.cli.console import OptionalSpecPath, page
from orchestrator.cli.latest import spec_and_name, ui_hint
from orchestrator.cli.stored import stored_state


def report(spec_path: OptionalSpecPath = None) -> None:
    """Print the table of a sweep that has run."""
    spec, name = spec_and_name(spec_path)

    from orchestrator.report import render_report
    from orchestrator.study import load_end, load_proofs, load_records

    records, proofs = load_records(spec, name), load_proofs(spec, name)
    state = stored_state(spec, name, records, proofs, load_end(spec, name))
    page().print(render_report(state, ui_hint(spec, spec_path)))
