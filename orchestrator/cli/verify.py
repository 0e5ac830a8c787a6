"""`plimsoll verify`: check of an exported folder against the measured plan."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from orchestrator.cli.console import print_line, table_console
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json
from orchestrator.cli.result import Result
from search_spaces.errors import UserError

if TYPE_CHECKING:
    from orchestrator.export.verify import Finding

_STEPS = 24
_START_SECONDS = 300.0  # to load libraries, build the model and compile it
_SLACK = 3.0  # times the seconds of the steps in the trial


def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")],
    steps: Annotated[int, typer.Option("--steps", min=5, metavar="N")] = _STEPS,
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.01)] = None,
    settings_only: Annotated[bool, typer.Option("--settings-only")] = False,
    install: Annotated[bool, typer.Option("--install")] = False,
    as_json: Json = False,
) -> Result:
    """Run an exported folder briefly; check settings, losses and speed against the plan.

    The file of another trainer is read, not run.
    """
    from search_spaces.settings.export_manifest import ExportManifest
    from search_spaces.specification.schema import TrainerFile

    manifest = ExportManifest.read(folder)
    if manifest.format in get_args(TrainerFile):
        from orchestrator.export.trainer_environment import check_file

        found = tuple(check_file(manifest, folder, print_line, install=install))
        return _result(folder, found, found[-1], settings_only=False, as_json=as_json)
    if install:
        from orchestrator.export.trainer_environment import PARSERS

        raise UserError(f"--install is for {', '.join(PARSERS)}: {folder} has none of their files")

    from orchestrator.export.observed_run import observed_run
    from orchestrator.export.side_by_side import compared_again
    from orchestrator.export.verify import LOSSES, SPEED, changed_files, check_run
    from orchestrator.host import termination_as_interrupt

    changed = changed_files(manifest, folder)
    seconds = _START_SECONDS + _SLACK * steps * manifest.step_seconds.high
    if minutes is not None:
        seconds = 60 * minutes
    print_line(
        f"{folder}: running `{manifest.command}` for {steps} steps, at most"
        f" {seconds / 60:.0f} min ..."
    )
    with termination_as_interrupt():
        ranks = observed_run(manifest, folder, steps=steps, seconds=seconds)
    findings = check_run(manifest, ranks, changed, settings_only=settings_only)
    if [finding.check for finding in findings if finding.passed is False] == [SPEED]:
        print_line("slower than its trial was; running the trial and the folder in turn ...")
        with termination_as_interrupt():
            again = compared_again(manifest, folder, steps=steps, seconds=seconds)
        if again is None:
            print_line("the trial could not be measured now; the speed is compared with its record")
        findings = (*findings[:-1], again or findings[-1])
    losses = next(finding for finding in findings if finding.check == LOSSES)
    return _result(folder, findings, losses, settings_only=settings_only, as_json=as_json)


def _result(
    folder: Path,
    findings: tuple[Finding, ...],
    decisive: Finding,
    *,
    settings_only: bool,
    as_json: bool,
) -> Result:
    """Shows the findings; without the `decisive` one the folder is not verified."""
    if not as_json:
        _show(findings, decisive, settings_only)
    differs = any(finding.passed is False for finding in findings)
    done = not differs and (settings_only or decisive.passed is not None)
    return Result(
        kind="verify",
        content=lambda: {
            "folder": str(folder),
            "verified": not differs and decisive.passed is not None,
            "findings": [asdict(finding) for finding in findings],
        },
        code=ExitCode.DONE if done else ExitCode.NOTHING_FOUND,
    )


def _show(findings: tuple[Finding, ...], decisive: Finding, settings_only: bool) -> None:
    from orchestrator.report.sections import Table
    from orchestrator.report.terminal import render_table

    marks = {True: "matches", False: "DIFFERS", None: "not checked"}
    table = Table(
        titles=("check", "expected", "observed", "verdict"),
        rows=tuple((one.check, one.expected, one.observed, marks[one.passed]) for one in findings),
        bold={index for index, one in enumerate(findings) if not one.passed},
    )
    table_console().print(render_table(table))
    is_run = decisive.check == "losses"
    different = [finding.check for finding in findings if finding.passed is False]
    if different:
        print_line(f"differs: {', '.join(different)}")
    elif decisive.passed:
        means = "the folder does what was measured"
        accepts = "its trainer accepts the file, which means the plan; it was not run"
        print_line(f"verified: {means if is_run else accepts}")
    elif settings_only:
        print_line("settings match; losses were not compared")
    else:
        words = "losses were not compared, because " if is_run else ""
        print_line(f"not verified: {words}{decisive.reason}")
