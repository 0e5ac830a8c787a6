"""`plimsoll tune`: the sweep."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.check import expected
from orchestrator.cli.console import SpecPath, command_line, page, say_error, ui_hint
from orchestrator.core.ranking import counts, measured
from orchestrator.latest import remember
from search_spaces.spec.load import load_spec, study_name, with_budget

if TYPE_CHECKING:
    from orchestrator.core.state import SweepState

EXIT_NOTHING_FOUND = 1
EXIT_STUDY_LOST = 75  # as sysexits has it: try again later


def tune(
    spec_path: SpecPath,
    trials: Annotated[
        int | None, typer.Option(help="Trials, in place of budget.trials.", show_default=False)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes, in place of budget.minutes.", show_default=False)
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Plain lines instead of the live view.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Events as lines of JSON on stdout, instead of view and report."
        ),
    ] = False,
    proof: Annotated[
        bool | None,
        typer.Option(
            "--proof/--no-proof",
            help="Prove the best plan or not, in place of proof.enabled.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(
            metavar="STUDY", help="Forecast from a study too: its specification or its name."
        ),
    ] = None,
) -> None:
    """Search, measure and rank plans; goes on where an earlier run of the same study stopped."""
    spec = with_budget(load_spec(spec_path), trials=trials, minutes=minutes, proof=proof)
    name = study_name(spec, spec_path)

    from orchestrator.event_log import EventFile, EventStream, events_file
    from orchestrator.forecasting.taught import taught_by
    from orchestrator.report import render_report
    from orchestrator.study import StudyLost, check_study
    from orchestrator.sweep import Stopped, run_sweep
    from orchestrator.view import make_view
    from search_spaces.forecast.belief import shipped_belief

    if spec.cluster.workers != "auto":
        expected(spec, spec.cluster.workers)  # what is wrong without any cluster, before one starts
    check_study(spec, name)  # another job must not replace the specification of this study's own
    belief = shipped_belief()
    if records is not None:
        belief = taught_by(belief, records, tuned=spec, tuned_name=name)
    remember(spec, name)
    view = EventStream(sys.stdout) if json else make_view(plain)
    listeners = [view, EventFile(events_file(spec, name), say_error)]
    try:
        state = run_sweep(spec, name, listeners, belief)
    except KeyboardInterrupt as stopped:
        say_error(f"Stopped. To go on where it stopped: {command_line('tune', spec_path)}")
        signum = stopped.signum if isinstance(stopped, Stopped) else signal.SIGINT
        raise typer.Exit(128 + signum) from None  # as shells have it
    except StudyLost as lost:
        say_error(str(lost))
        raise typer.Exit(EXIT_STUDY_LOST) from None
    if not json:
        page().print(render_report(state, ui_hint(spec, spec_path)))
    if state.best is None:
        say_error(why_nothing(state))
        raise typer.Exit(EXIT_NOTHING_FOUND)


def why_nothing(state: SweepState) -> str:
    """One sentence on why the sweep found no plan that can be used."""
    if not state.records:
        reason = state.ended.reason if state.ended else "it was stopped"
        return f"No plan was found: no trial ended ({reason})."
    if any(measured(record) for record in state.records):
        from orchestrator.report import all_failed, short_of_goal

        if failed := all_failed(state):
            return f"No plan was found: {failed}."
        if short := short_of_goal(state):
            return f"No plan was found: {short}."
        share = 100 * state.spec.objective.headroom
        return (
            f"No plan was found: those that trained left less than {share:g} % of the memory limit"
            " free; lower objective.headroom, raise cluster.memory_gib or take a smaller model."
        )
    endings = ", ".join(
        f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(counts(state.records).items())
    )
    return f"No plan was found: no trial could be measured ({endings})."
