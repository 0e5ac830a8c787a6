"""`plimsoll replay`: the decisions of a past sweep, beside those that today's code takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completion import complete_study
from orchestrator.cli.console import print_line
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json, named_study
from orchestrator.cli.result import Result


def replay(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY|FILE]",
            help="Study, or a decisions.jsonl of one. Default: the latest sweep here.",
            autocompletion=complete_study,
        ),
    ] = None,
    differences: Annotated[
        bool, typer.Option("--differences", help="Show only what would be decided otherwise.")
    ] = False,
    as_json: Json = False,
) -> Result:
    """Decide on everything that happened in a past sweep again, and compare the decisions."""
    from orchestrator.report.replay_text import replay_lines, step_to_json
    from orchestrator.tracking.decisions import decisions_file
    from orchestrator.tracking.decisions import replay as replayed

    if study is not None and study.endswith(".jsonl"):
        path = Path(study)
    else:
        named = named_study(study)
        path = decisions_file(named.spec, named.name)
    steps = tuple(replayed(path))
    shown = [step for step in steps if step.differs or not differences]
    if not as_json:
        for line in replay_lines(shown, len(steps)):
            print_line(line)
    return Result(
        kind="replay",
        content=lambda: {"file": str(path), "steps": [step_to_json(step) for step in shown]},
        code=ExitCode.NOTHING_FOUND if any(step.differs for step in steps) else ExitCode.DONE,
    )
