"""`plimsoll init`: a first specification, one from another trainer's file, or an example."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import command_line, print_line
from search_spaces.errors import UserError, written
from search_spaces.safety.files import write_durably
from search_spaces.specification.template import (
    RUNNABLE_EXAMPLES,
    commented_template,
    example_files,
)
from search_spaces.specification.trainer_configs.conversion import convert
from search_spaces.specification.trainer_configs.tables import trainers

_SPEC = Path("plimsoll.yaml")


def init(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="File to write; with --example, the folder.",
            show_default=f"{_SPEC}, or the example's name",
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
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a specification that explains every key, one from another trainer, or an example."""
    if source is not None:
        if example is not None:
            raise UserError("--from and --example exclude each other: give one")
        _convert(source, path or _SPEC, force=force)
        return
    if example is None:
        file = path or _SPEC
        _write({file: commented_template()}, force=force)
        print_line(
            f"Wrote {file}. Fill in the model and your data, then: {command_line('tune', file)}"
        )
        return
    folder = path or Path(example)
    texts = {folder / name: text for name, text in example_files(example).items()}
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _write(texts, force=force)
    change_folder = "" if folder == Path() else f"cd {folder} && "
    files = " and ".join(map(str, texts))
    print_line(f"Wrote {files}. Run it: {change_folder}plimsoll tune {example}.yaml")


def _convert(source: str, file: Path, *, force: bool) -> None:
    conversion = convert(source)
    _write({file: conversion.text}, force=force)
    print_line(f"Wrote {file} from a configuration of {conversion.trainer}.")
    for title, lines in (("Left out", conversion.omitted), ("Fill in", conversion.blanks)):
        for line in lines:
            print_line(f"{title}: {line}")
    print_line(f"Then: {command_line('check', file)}")


def _write(texts: Mapping[Path, str], *, force: bool) -> None:
    """Writes all files, or none if one exists and `force` is off."""
    for file in texts:
        with written(file):
            if not force and file.exists():
                raise UserError(f"{file} exists; --force replaces it")
    for file, text in texts.items():
        with written(file):
            write_durably(file, text)
