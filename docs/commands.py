"""Reference of the commands as Markdown, generated from the command line.

`python docs/commands.py > docs/commands.md` regenerates it; a test checks that it is up to date.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from typer.main import get_group

from orchestrator.cli.app import app

_HEAD = """\
# Commands

`plimsoll COMMAND --help` prints the same; all commands take `--debug`. [cli.md](cli.md) has exit
codes, JSON and ways to name a study.

This page is generated: `python docs/commands.py > docs/commands.md`
"""
_SHARED = 3  # what that many commands have in the same words is described once


def commands_reference() -> str:
    """Returns the reference: what several commands share, then each command's own."""
    commands = get_group(app).commands
    rows = {name: list(_rows(command)) for name, command in commands.items()}
    counts = Counter(row for own in rows.values() for row in own)
    shared = [row for row, count in counts.items() if count >= _SHARED]
    parts = [_HEAD, "## Shared by several commands", *_list(shared)]
    for name, own in rows.items():
        options = [row for row in own if row[0].startswith("-")]
        usage = [row[0] for row in own if row not in options]
        usage += [f"[{row[0]}]" for row in options if row in shared and row[0] != "--debug"]
        parts.append(
            f"\n## {name}\n\n    {' '.join(('plimsoll', name, *usage))}\n\n{commands[name].help}"
        )
        parts += _list([row for row in own if row not in shared])
    return "\n".join(parts) + "\n"


def _list(rows: list[tuple[str, str]]) -> Iterator[str]:
    yield from [""] * bool(rows)
    for argument, meaning in rows:
        yield f"- `{argument}`: {meaning}"


def _rows(command: Any) -> Iterator[tuple[str, str]]:
    """Yields arguments and options as `--help` shows them, with their meaning."""
    for parameter in command.params:
        metavar = parameter.metavar or (parameter.name or "").upper()
        words = [metavar]
        if parameter.param_type_name == "option":
            words = ["/".join((*parameter.opts[:1], *parameter.secondary_opts))]
            words += [] if parameter.is_flag else [metavar]
        yield " ".join(words), " ".join((getattr(parameter, "help", None) or "").split())


if __name__ == "__main__":
    sys.stdout.write(commands_reference())
