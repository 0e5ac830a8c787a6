"""`plimsoll init`: a specification to begin with, or a runnable example."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completion import complete_example
from orchestrator.cli.console import command_line, say
from search_spaces.errors import UserError
from search_spaces.spec.template import RUNNABLE_EXAMPLES, commented_template, example_files

_SPEC = Path("plimsoll.yaml")


def init(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="The file to write; of an example the folder.",
            show_default=f"{_SPEC}, or the example's name",
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="NAME",
            help="Write an example that runs as it is, with its data:"
            f" {', '.join(RUNNABLE_EXAMPLES)}.",
            autocompletion=complete_example,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a specification with every key explained, or a runnable example."""
    if example is None:
        file = path or _SPEC
        _write({file: commented_template()}, force=force)
        say(f"Wrote {file}. Fill in the model and your data, then: {command_line('tune', file)}")
        return
    folder = path or Path(example)
    texts = {folder / name: text for name, text in example_files(example).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _refusal(folder, error) from None
    _write(texts, force=force)
    enter = "" if folder == Path() else f"cd {folder} && "
    said = " and ".join(map(str, texts))
    say(f"Wrote {said}. Run it: {enter}plimsoll tune {example}.yaml")


def _write(texts: Mapping[Path, str], *, force: bool) -> None:
    """Writes the files; none of them where one is there already, unless it may be replaced."""
    there = next((file for file in texts if not force and file.exists()), None)
    if there is not None:
        raise UserError(f"{there} exists; --force replaces it")
    for file, text in texts.items():
        try:
            file.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise _refusal(file, error) from None


def _refusal(path: Path, error: OSError | ValueError) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UserError(f"{path} cannot be written: {reason}")
