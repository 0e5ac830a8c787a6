"""`plimsoll tune`: a sweep in this process."""

from __future__ import annotations

import sys
import time
import webbrowser
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from orchestrator.cli import options
from orchestrator.cli.console import (
    command_line,
    print_error,
    print_line,
    table_console,
    ui_hint,
    write_text,
)
from orchestrator.cli.exit_codes import exit_code_after, sweep_exit_code
from orchestrator.cli.result import Result, reserved_stdout
from orchestrator.core.failures import cause_of_all
from orchestrator.workspace import REPORT_FILE
from search_spaces.errors import UserError, require
from search_spaces.specification.load import FLAG, load_spec, study_name, with_budget
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Activity, ActivityKind
from workers.models.trust import trust_modules

if TYPE_CHECKING:
    from orchestrator.core.state import AbstractView, SweepState

_Plain = Annotated[bool, typer.Option("--plain")]
_Events = Annotated[bool, typer.Option("--events")]
_Validation = Annotated[
    bool | None, typer.Option("--validation/--no-validation", show_default=False)
]

_Open = Annotated[bool, typer.Option("--open")]


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
    opened: _Open = False,
) -> Result:
    """Search, measure and rank plans; resumes where an earlier run of the study stopped."""
    if events and as_json:
        raise UserError("--events and --json both write to stdout: choose one")
    trust_modules(trusted or ())
    loaded = load_spec(spec_path, overrides or ())
    spec = with_budget(loaded, trials=trials, minutes=minutes, validation=validation)
    name = study_name(spec, spec_path)

    require("optuna", "ray")
    try:
        with reserved_stdout() if events else nullcontext(sys.stdout) as stdout:
            sweep = partial(_swept, events=stdout if events else None, plain=plain)
            if spec.objective.metric == "sequence_length":
                from orchestrator.forecast.longest import tune_longest

                state = tune_longest(spec, name, sweep, print_line)
            else:
                state = sweep(spec, name)
    except KeyboardInterrupt as stopped:
        words = options.repeated(FLAG, overrides) + options.repeated(options.TRUST_FLAG, trusted)
        again = command_line("tune", spec_path, *words)
        print_error(f"Stopped. To resume: {again}")
        raise typer.Exit(exit_code_after(stopped)) from None
    assert state.ended is not None
    from orchestrator.report.document import report_document
    from orchestrator.report.sweep_text import best_sentence

    if not events and not as_json:
        # after --set, the file alone does not describe the sweep; the study's folder does
        own = overrides or state.study != name
        _report(state, Path(spec.study.folder, state.study) if own else spec_path, opened)
    if state.best is None:
        lead = "" if cause_of_all(state.records) else "No plan was found: "
        print_error(f"{lead}{best_sentence(state)}")
    return Result(
        kind="report",
        content=lambda: report_document(state),
        code=sweep_exit_code(state),
    )


def _swept(spec: SweepSpec, name: str, events: TextIO | None, plain: bool) -> SweepState:
    """Runs a sweep, with events on a stream or a view; its first word comes before long imports."""
    if events is not None:
        from orchestrator.tracking.events import EventStream

        view: AbstractView = EventStream(events, name)
    else:
        from orchestrator.cluster.runtime import ray_logs_enabled
        from orchestrator.report.live import make_view

        view = make_view(plain or ray_logs_enabled())
    with closing(view):
        view.on_activity(Activity(kind=ActivityKind.READING_MODEL, at=time.time()))
        from orchestrator.sweep import run_sweep

        return run_sweep(spec, name, [view])


def _report(state: SweepState, study: Path, opened: bool) -> None:
    """Prints the report and what follows it; writes the page, which `opened` opens in a browser."""
    from orchestrator.explain.context import forecasts_or_reason
    from orchestrator.report.sweep_document import render_report, report_page

    spec = state.spec
    table_console().print(render_report(state, ui_hint(spec, study)))
    folder = Path(spec.study.folder).absolute()
    page = folder / state.study / REPORT_FILE
    try:
        write_text(page, report_page(state, *forecasts_or_reason(state)), below=folder)
    except UserError as error:
        print_error(f"note: {error}")
    else:
        print_line(f"page: {page.as_uri()}")
        if opened:
            webbrowser.open(page.as_uri())
    for command in ("report", "explain", *["export"] * (state.best is not None)):
        print_line(f"next: {command_line(command, study)}")
