"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api import find_study
from orchestrator.cli.completion import complete_key, complete_study, complete_trial
from orchestrator.cli.console import say_error
from orchestrator.workspace import NamedStudy
from search_spaces.spec.load import FLAG

SpecPath = Annotated[Path, typer.Argument(metavar="SPEC", help="The specification, a YAML file.")]
StudyName = Annotated[
    str | None,
    typer.Argument(
        metavar="[STUDY]",
        help="The study: its specification, folder, name, or database (a SQLite file or a URL;"
        " DATABASE#NAME where it holds several); without it, the latest sweep here.",
        autocompletion=complete_study,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result to stdout as one JSON document, nothing else."),
]
JsonFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the result to FILE as JSON.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the specification, as train.global_batch=64; the value is read as YAML."
        " May be repeated.",
        autocompletion=complete_key,
    ),
]
TrialNumber = Annotated[
    int | None,
    typer.Option(
        "--trial",
        metavar="N",
        min=0,
        help="Trial N; else the answer.",
        autocompletion=complete_trial,
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks, and Ray's logs where Ray runs.")
]


def set_arguments(overrides: Sequence[str] | None) -> list[str]:
    """The overrides as they are typed again."""
    return [word for text in overrides or () for word in (FLAG, text)]


def find(study: str | None) -> NamedStudy:
    """The study that an argument names; what has to be said of it goes to stderr.

    Raises:
        UserError: If there is no such study.
    """
    found = find_study(study)
    if found.note:
        say_error(f"note: {found.name}: {found.note}")
    return found
