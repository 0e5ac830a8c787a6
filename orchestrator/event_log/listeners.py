"""Who writes the lines: into the study's folder, and to a stream in place of the view."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, final

from orchestrator.core.events import Event
from orchestrator.core.state import SweepState
from orchestrator.event_log.making import line_of
from orchestrator.event_log.reading import to_json
from orchestrator.listener import AbstractListener
from search_spaces.spec.schema import SweepSpec

if TYPE_CHECKING:
    from io import FileIO

FILE = "events.jsonl"


def events_file(spec: SweepSpec, name: str) -> Path:
    """Where a study's events are kept."""
    return Path(spec.study.folder, name, FILE)


@final
class EventStream(AbstractListener):
    """Writes each event as a line, and flushes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def on_event(self, event: Event, state: SweepState) -> None:
        """Writes what happened."""
        self._stream.write(to_json(line_of(event, state)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Every line has been flushed; there is nothing left to do."""


@final
class EventFile(AbstractListener):
    """Adds each event to a file; a file that cannot be written costs the sweep nothing.

    Drivers of one study, one after the other, add to the same file.

    Args:
        path: The file.
        say: Where a file that could not be written is told of, once, when closing.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._file: FileIO | None = None
        self._problem: str | None = None

    def on_event(self, event: Event, state: SweepState) -> None:
        """Adds a line."""
        text = to_json(line_of(event, state)).encode() + b"\n"
        try:
            if self._file is None:
                self._file = _opened(self._path)
            # one write, unbuffered: a driver that is killed leaves whole lines
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._problem = error.strerror or str(error)
            self._let_go()  # the next event may find it again, and what is torn in it

    def close(self) -> None:
        """Closes the file; says so if it does not hold all events."""
        self._let_go()
        if self._problem is not None:
            self._say(f"{self._path} does not hold all events of the sweep: {self._problem}")

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _opened(path: Path) -> FileIO:
    """The file, ready for a new line whatever a driver before left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    if size := file.seek(0, os.SEEK_END):
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file
