"""Journal of a sweep: each input of the controller, what was decided on it, and its events.

A line of JSON holds one input of `core.handle`, in the order in which `handle` saw them, with the
instructions and the lines of events that followed. The study stays the truth, and sweeps resume
from it; the journal shows how a sweep came to it, and `benchmarks/simulation/replay.py` lets
today's core decide on the same inputs again.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, final

from orchestrator.core.events import Event, SweepStarted
from orchestrator.core.inputs import DriverStarted, Input
from orchestrator.core.instructions import Announce, Instruction, RequestCapacity, Run
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.tracking.events import Line, header, line_of, to_json
from search_spaces.safety.files import opened_for_appending

FILE = "journal.jsonl"


@final
class Journal(AbstractCallback):
    """Appends lines to a file; one that cannot be written never disturbs the sweep.

    Successive drivers of a study append to the same file. A line is written once its instructions
    have been carried out: a trial whose end it holds is in the study.

    Args:
        path: The file; None: no journal is kept.
        say: Receives a message about a file that could not be written, once, when closing.
    """

    def __init__(self, path: Path | None = None, say: Callable[[str], None] = print) -> None:
        self._path = path
        self._say = say
        self._lines: list[Line] = []  # of inputs that are being carried out
        self._problem: str | None = None

    def record(
        self, given: DriverStarted | Input, instructions: Sequence[Instruction], study: str
    ) -> None:
        """Begins the line of an input."""
        if self._path is not None:
            decided = [instruction_values(one) for one in instructions]
            line = {"input": _input_values(given), "instructions": decided, "events": []}
            self._lines.append({**header(given.at, study), **line})

    def on_event(self, event: Event, state: SweepState) -> None:
        """Adds an event to the line of the last input."""
        if self._lines:
            self._lines[-1]["events"].append(line_of(event, state))

    def write(self) -> None:
        """Appends the lines of inputs whose instructions have been carried out."""
        lines, self._lines = self._lines, []
        try:
            if self._path is not None and lines:
                _append(self._path, lines)
        except OSError as error:
            self._problem = error.strerror or str(error)

    def close(self) -> None:
        """Appends what is left; reports the file if it lacks lines."""
        self.write()
        if self._problem is not None:
            self._say(f"{self._path} lacks some lines of the sweep: {self._problem}")


def instruction_values(instruction: Instruction) -> Line:
    """Returns kind and fields of an instruction, without the specification."""
    values = _values(instruction)
    match instruction:
        case Run(request=request):
            values["request"] = _values(request, leave_out=("spec",))
        case Announce(event=SweepStarted()):
            values["event"] = "SweepStarted"
        case RequestCapacity(need=need):  # a set has another order in each process
            values["need"] = {**_values(need), "nodes": sorted(need.nodes)}
    return values


def _input_values(given: DriverStarted | Input) -> Line:
    if not isinstance(given, DriverStarted):
        return _values(given)
    sweep, table = given.sweep, given.sweep.space.table
    tried = {row for record in sweep.records for row in table.rows_of(record.plan).tolist()}
    return {
        **_values(sweep, leave_out=("space",)),
        **_values(given, leave_out=("sweep",)),
        "spec": sweep.spec.for_workers,
        "baseline": sweep.space.baseline.as_dict(),
        "plans": len(table),
        "untried": len(table) - len(tried),
    }


def _values(value: Any, leave_out: Sequence[str] = ()) -> Line:
    names = [field.name for field in fields(value) if field.name not in leave_out]
    return {"kind": type(value).__name__, **{name: getattr(value, name) for name in names}}


def _append(path: Path, lines: Sequence[Line]) -> None:
    """Appends lines; with a result or the end, they and all before them outlive a power loss."""
    text = "".join(f"{to_json(line)}\n" for line in lines).encode()
    kinds = {event["event"] for line in lines for event in line["events"]}
    with opened_for_appending(path, below=path.parent.parent) as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":  # a driver was killed, or the disk was full
                text = b"\n" + text
        # one unbuffered write, so that a killed driver leaves complete lines
        if file.write(text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if kinds & {"trial_ended", "sweep_ended"}:
            os.fsync(file)
