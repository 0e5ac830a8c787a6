"""`plimsoll tune`: a sweep in this process."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.console import command_line, print_error, table_console, ui_hint
from orchestrator.cli.exit_codes import exit_code_after, sweep_exit_code
from orchestrator.cli.result import Result, reserved_stdout
from search_spaces.errors import UserError, require
from search_spaces.specification.load import load_spec, study_name, with_budget
from workers.models.trust import trust_modules

_Plain = Annotated[
    bool, typer.Option("--plain", help="Print plain lines instead of the live view.")
]
_Events = Annotated[
    bool,
    typer.Option(
        "--events",
        help="Print each event to stdout as a line of JSON, instead of the view and report.",
    ),
]
_Validation = Annotated[
    bool | None,
    typer.Option(
        "--validation/--no-validation",
        help="Validate the best plan or not (overrides validation.enabled).",
        show_default=False,
    ),
]


def tune(
    spec_path: options.SpecPath,
    trials: options.Trials = None,
    minutes: options.Minutes = None,
    plain: _Plain = False,
    events: _Events = False,
    validation: _Validation = None,
    overrides: options.Overrides = None,
    trusted: options.TrustedModules = None,
    as_json: options.Json = False,
) -> Result:
    """Search, measure and rank plans; resumes where an earlier run of the study stopped."""
    if events and as_json:
        raise UserError("--events and --json both write to stdout: choose one")
    trust_modules(trusted or ())
    loaded = load_spec(spec_path, overrides or ())
    spec = with_budget(loaded, trials=trials, minutes=minutes, validation=validation)
    name = study_name(spec, spec_path)

    require("optuna", "ray")
    from orchestrator.cluster.runtime import ray_logs_enabled
    from orchestrator.report.document import report_document
    from orchestrator.report.live import make_view
    from orchestrator.report.sweep_document import render_report
    from orchestrator.report.sweep_text import best_sentence
    from orchestrator.sweep import run_sweep
    from orchestrator.tracking.events import EventStream

    try:
        with reserved_stdout() if events else nullcontext(sys.stdout) as stdout:
            view = EventStream(stdout) if events else make_view(plain or ray_logs_enabled())
            state = run_sweep(spec, name, [view])
    except KeyboardInterrupt as stopped:
        again = command_line(
            "tune", spec_path, *options.set_arguments(overrides), *options.trust_arguments(trusted)
        )
        print_error(f"Stopped. To resume: {again}")
        raise typer.Exit(exit_code_after(stopped)) from None
    assert state.ended is not None
    if not events and not as_json:
        # after --set, the file alone does not describe the sweep; the study's folder does
        swept = Path(spec.study.folder, name) if overrides else spec_path
        table_console().print(render_report(state, ui_hint(spec, swept)))
    if state.best is None:
        print_error(f"No plan was found: {best_sentence(state)}")
    return Result(
        kind="report",
        content=lambda: report_document(state),
        code=sweep_exit_code(state.ended.reason, found=state.best is not None),
    )
