"""`plimsoll schema`: the JSON Schema of a specification, or of what `--json` prints."""

import json
from typing import Annotated

import typer

from orchestrator.cli.result import JSON_VERSION
from search_spaces.errors import UserError
from search_spaces.specification.json_schema import json_schema


def schema(
    of: Annotated[str | None, typer.Option(metavar="KIND")] = None,
) -> None:
    """Print the JSON Schema of a specification, for editors, or of a document of --json."""
    content = json_schema()
    if of is not None:
        from orchestrator.cli.json_schemas import KINDS, document_schema

        of = "report" if of == "tune" else of  # the same document
        if of not in KINDS:
            raise UserError(f"--of {of} is not a kind of document: give one of {', '.join(KINDS)}")
        content = document_schema(of, JSON_VERSION)
    typer.echo(json.dumps(content, indent=2))
