"""`plimsoll init`: a specification to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import command_line, say
from search_spaces.errors import UserError
from search_spaces.spec.template import commented_template


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("plimsoll.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a specification with every key explained."""
    mode = "w" if force else "x"
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(commented_template())
    except FileExistsError:
        raise UserError(f"{path} exists; --force replaces it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be written: {reason}") from None
    say(f"Wrote {path}. Fill in the model and your data, then: {command_line('tune', path)}")
