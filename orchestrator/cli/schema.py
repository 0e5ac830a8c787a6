"""`plimsoll schema`: the JSON Schema of a specification."""

from __future__ import annotations

import json

import typer

from search_spaces.specification.json_schema import json_schema


def schema() -> None:
    """Print the JSON Schema of a specification, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))
