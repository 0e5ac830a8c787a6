"""Arguments and options shared by several commands."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api import find_study
from orchestrator.cli.console import print_error
from orchestrator.workspace import NamedStudy

TRUST_FLAG = "--trust-module"
SpecPath = Annotated[Path, typer.Argument(metavar="SPEC")]
STUDY = typer.Argument(metavar="[STUDY]")
StudyName = Annotated[str | None, STUDY]
Json = Annotated[bool, typer.Option("--json")]
JsonFile = Annotated[Path | None, typer.Option("--out", metavar="FILE")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")]
TrustedModules = Annotated[list[str] | None, typer.Option(TRUST_FLAG, metavar="MODULE")]
TrialNumber = Annotated[int | None, typer.Option("--trial", metavar="N", min=0)]
Trials = Annotated[int | None, typer.Option(show_default=False)]
Minutes = Annotated[float | None, typer.Option(show_default=False)]
Debug = Annotated[bool, typer.Option("--debug")]


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
