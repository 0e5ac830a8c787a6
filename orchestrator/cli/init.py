"""`plimsoll init`: a specification of what is in the folder, of a recipe, trainer or example."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote, split
from typing import Annotated

import typer

from orchestrator.cli.console import command_line, print_line
from search_spaces.errors import UserError, written
from search_spaces.safety.files import is_folder, write_durably
from search_spaces.specification.json_schema import json_schema
from search_spaces.specification.template import (
    EXAMPLES,
    RECIPES,
    RUNNABLE_EXAMPLES,
    commented_template,
    example_files,
    origin_lines,
    recipe,
)
from search_spaces.specification.trainer_configs.conversion import convert
from search_spaces.specification.trainer_configs.tables import trainers

_SPEC = Path("plimsoll.yaml")
_SCHEMA = "plimsoll.schema.json"


def init(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", show_default=f"{_SPEC}, or the example's name"),
    ] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
    question: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="Write the specification that answers a usual question, and print the commands:"
            f" {', '.join(RECIPES)}.",
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="NAME",
            help="Write an example that runs unchanged, with its data:"
            f" {', '.join(RUNNABLE_EXAMPLES)}.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Turn a configuration of another trainer into a specification:"
            f" {', '.join(trainers())}. FILE:NAME names one of several in"
            " a Python file.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force")] = False,
) -> None:
    """Write a specification of the model, data and GPUs that are here, or of something else."""
    options = {"--all": every, "--recipe": question, "--example": example, "--from": source}
    given = [name for name, value in options.items() if value not in (None, False)]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other: give one")
    if example is not None:
        _write_example(example, path or Path(example), force=force)
        return
    file = path / _SPEC if path is not None and is_folder(path) else path or _SPEC
    if source is not None:
        _convert(source, file, force=force)
    else:
        _look(file, question, every=every, force=force)


def _look(file: Path, question: str | None, *, every: bool, force: bool) -> None:
    from orchestrator.cli.project import look

    found, refused = look(file.parent)
    values = {**EXAMPLES, **found}
    text = commented_template(values) if every else "\n".join([*origin_lines(values), ""])
    commands = tuple(f"plimsoll {command} {quote(str(file))}" for command in ("check", "tune"))
    if question is not None:
        found = {key: found[key] for key in found if key.startswith(("model.", "data."))}
        text, commands = recipe(question, str(file), found)
    _write_specification(file, text, force=force)
    print_line(f"Wrote {file}, and {_SCHEMA} for your editor.")
    _print_lines("   ", [] if every or question else text.splitlines())
    _print_lines("Not used:", refused)
    blanks = (f"{key}: {hint}" for key, (value, hint) in found.items() if value is None)
    _print_lines("Fill in:", blanks)
    _print_lines("Run:", (command_line(*split(command)[1:]) for command in commands))


def _write_example(example: str, folder: Path, *, force: bool) -> None:
    texts = {folder / name: text for name, text in example_files(example).items()}
    _write(texts, force=force)
    change_folder = "" if folder == Path() else f"cd {folder} && "
    files = " and ".join(map(str, texts))
    print_line(f"Wrote {files}. Run it: {change_folder}plimsoll tune {example}.yaml")


def _convert(source: str, file: Path, *, force: bool) -> None:
    conversion = convert(source)
    _write_specification(file, conversion.text, force=force)
    print_line(f"Wrote {file} from a configuration of {conversion.trainer}.")
    _print_lines("Left out:", conversion.omitted)
    _print_lines("Fill in:", conversion.blanks)
    print_line(f"Then: {command_line('check', file)}")


def _print_lines(title: str, lines: Iterable[str]) -> None:
    for line in lines:
        print_line(f"{title} {line}")


def _write_specification(file: Path, text: str, *, force: bool) -> None:
    """Writes a specification, and beside it the schema by which editors complete and check it."""
    _write({file: f"# yaml-language-server: $schema={_SCHEMA}\n{text}"}, force=force)
    _write({file.with_name(_SCHEMA): json.dumps(json_schema(), indent=2) + "\n"}, force=True)


def _write(texts: Mapping[Path, str], *, force: bool) -> None:
    """Writes all files, or none if one exists and `force` is off."""
    for file in texts:
        with written(file):
            if not force and file.exists():
                raise UserError(f"{file} exists; --force replaces it")
    for file, text in texts.items():
        with written(file):
            write_durably(file, text)
