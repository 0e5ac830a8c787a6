"""Arguments and options shared by several commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api import find_study
from orchestrator.cli.console import print_error
from orchestrator.workspace import NamedStudy

TRUST_FLAG = "--trust-module"
SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="Specification, a YAML file.")]
STUDY = typer.Argument(
    metavar="[STUDY]",
    help="Study: its specification, folder, name, or database (a SQLite file or a URL;"
    " DATABASE#NAME if it holds several). Default: the latest sweep here.",
)
StudyName = Annotated[str | None, STUDY]
Json = Annotated[
    bool, typer.Option("--json", help="Print only the result to stdout, as one JSON document.")
]
JsonFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the result to FILE as JSON.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the specification, such as train.global_batch=64; the value is YAML."
        " Repeatable.",
    ),
]
TrustedModules = Annotated[
    list[str] | None,
    typer.Option(
        TRUST_FLAG,
        metavar="MODULE",
        help="Run the model's code from this module, which is not below the current directory."
        " Repeatable.",
    ),
]
TrialNumber = Annotated[
    int | None,
    typer.Option("--trial", metavar="N", min=0, help="Trial N (default: the best plan)."),
]
Trials = Annotated[
    int | None, typer.Option(help="Number of trials (overrides budget.trials).", show_default=False)
]
Minutes = Annotated[
    float | None,
    typer.Option(help="Time limit in minutes (overrides budget.minutes).", show_default=False),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks, and Ray's logs for commands that use Ray.")
]


def repeated(flag: str, values: Sequence[str] | None) -> list[str]:
    """Returns the values of a flag that is given once for each, as words of a command line."""
    return [word for value in values or () for word in (flag, value)]


def named_study(study: str | None) -> NamedStudy:
    """Returns the study that an argument names, and prints its note, if any, to stderr.

    Raises:
        UserError: If there is no such study.
    """
    named = find_study(study)
    if named.note:
        print_error(f"note: {named.name}: {named.note}")
    return named
