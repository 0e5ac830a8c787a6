"""Lines to text and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from orchestrator.event_log.lines import VERSION, Line
from search_spaces.errors import UserError

_LINES: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="event")])


def to_json(line: Line) -> str:
    """The line as one line of JSON in ASCII, which any log can hold, without its end."""
    return _LINES.dump_json(line, ensure_ascii=True).decode()


def from_json(text: str | bytes) -> Line:
    """The line that `to_json` wrote; fields that a later release added are passed over.

    Raises:
        pydantic.ValidationError: If it is none.
    """
    return _LINES.validate_json(text)


def read_events(path: Path) -> Iterator[Line]:
    """The lines of a file, in their order.

    What a driver was writing when it died is passed over: a line that is no whole JSON.

    Raises:
        UserError: If the file cannot be read, or a line is none that this release knows.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"the events in {path} cannot be read: {error.strerror}") from error
    for number, text in enumerate(lines, 1):
        try:
            yield from_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                continue
            raise UserError(
                f"line {number} of {path} is no event of version {VERSION}: {first['msg']}"
            ) from error
