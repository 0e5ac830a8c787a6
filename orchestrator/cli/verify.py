"""`plimsoll verify`: whether an exported folder does what was measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.console import page, say
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json
from orchestrator.cli.result import Result

if TYPE_CHECKING:
    from orchestrator.export.verify import Finding

_STEPS = 24
_START_SECONDS = 300.0  # to load libraries, build a model and compile it
_SLACK = 3.0  # times what the steps took in the trial


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder that plimsoll export wrote.")
    ],
    steps: Annotated[
        int, typer.Option("--steps", min=5, metavar="N", help="Optimizer steps to run.")
    ] = _STEPS,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.01, help="End it after these; else by the steps' time."),
    ] = None,
    as_json: Json = False,
) -> Result:
    """Run an exported folder as it is: are settings, losses and speed those of the plan?"""
    from search_spaces.settings.export_manifest import ExportManifest

    exported = ExportManifest.read(folder)

    from orchestrator.export.verify import changed_files, check_run, observed_run
    from orchestrator.host import termination_as_interrupt

    changed = changed_files(exported, folder)
    seconds = _START_SECONDS + _SLACK * steps * exported.step_seconds.high
    if minutes is not None:
        seconds = 60 * minutes
    if not as_json:
        say(f"{folder}: `{exported.command}` for {steps} steps, {seconds / 60:.0f} min at most ...")
    with termination_as_interrupt():
        ranks = observed_run(exported, folder, steps=steps, seconds=seconds)
    findings = check_run(exported, ranks, changed)
    if not as_json:
        _show(findings)
    differs = any(finding.holds is False for finding in findings)
    return Result(
        kind="verify",
        content=lambda: {
            "folder": str(folder),
            "verified": not differs,
            "findings": [asdict(finding) for finding in findings],
        },
        code=ExitCode.NOTHING_FOUND if differs else ExitCode.DONE,
    )


def _show(findings: tuple[Finding, ...]) -> None:
    from rich.text import Text

    from orchestrator.report.sweep_tables import plain_table

    table = plain_table(("", False), ("should be", False), ("was", False), ("", False))
    for finding in findings:
        mark = {True: "holds", False: "DIFFERS", None: "not judged"}[finding.holds]
        cells = (finding.what, finding.wanted, finding.seen, mark)
        table.add_row(*(Text(cell) for cell in cells), style="" if finding.holds else "bold")
    page().print(table)
    wrong = [finding.what for finding in findings if finding.holds is False]
    say(f"differs: {', '.join(wrong)}" if wrong else "verified: it does what was measured")
