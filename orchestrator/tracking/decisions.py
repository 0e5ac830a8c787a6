"""Log of a sweep's decisions: what the controller was told, and what it decided on that.

Each line is JSON with one input of `core.handle` and the instructions that followed. The study
stays the truth, and sweeps resume from it; the log shows how a sweep came to it, and `replay` lets
today's core decide on the same inputs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from orchestrator.core import inputs
from orchestrator.core.controller_state import ControllerState
from orchestrator.core.handle import handle, start
from orchestrator.core.inputs import DriverStarted, Input
from orchestrator.core.instructions import Instruction, Run
from orchestrator.tracking.events import LineFile
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.space import Space, space_of_plans
from search_spaces.spec.files import LOG_BYTES, read_bounded
from search_spaces.spec.schema import SweepSpec

VERSION: Final = 1
FILE = "decisions.jsonl"
_INPUTS: dict[str, Any] = {
    name: value
    for name, value in vars(inputs).items()
    if isinstance(value, type) and value in Input.__args__
}
_STARTED = "DriverStarted"
Json = dict[str, Any]


def decisions_file(spec: SweepSpec, name: str) -> Path:
    """Returns the path of a study's log of decisions."""
    return Path(spec.study.folder, name, FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLog:
    """Appends inputs and instructions to a file."""

    lines: LineFile

    def write(self, given: DriverStarted | Input, instructions: Sequence[Instruction]) -> None:
        """Appends an input, and what the controller decided on it."""
        line = {
            "version": VERSION,
            "input": {"kind": type(given).__name__, **_input_to_json(given)},
            "instructions": [instruction_to_json(one) for one in instructions],
        }
        self.lines.append(json.dumps(line, separators=(",", ":")))

    def close(self) -> None:
        """Closes the file."""
        self.lines.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """One input of a past sweep.

    Attributes:
        line: Its line in the log.
        at: When it came, in seconds since the epoch.
        kind: Its kind.
        recorded: The instructions that followed then, as JSON values.
        today: Those that today's core decides on; equal if it decides the same.
    """

    line: int
    at: float
    kind: str
    recorded: tuple[Json, ...]
    today: tuple[Json, ...]

    @property
    def differs(self) -> bool:
        """True if today's core decides otherwise."""
        return self.recorded != self.today


def replay(path: Path) -> Iterator[ReplayedStep]:
    """Decides on the inputs of a past sweep again, driver after driver.

    Raises:
        UserError: If the file cannot be read, or is not such a log.
    """
    state: ControllerState | None = None
    for number, line in _lines(path):
        try:
            given, at, kind = line["input"], float(line["input"]["at"]), str(line["input"]["kind"])
            if kind == _STARTED:
                state, decided = start(_started(given))
            elif state is None:
                continue  # its driver's first line was lost
            else:
                state, decided = handle(state, _input(given))
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            raise UserError(
                f"line {number} of {path} is not a decision of version {VERSION}"
            ) from error
        yield ReplayedStep(
            line=number,
            at=at,
            kind=kind,
            recorded=tuple(line["instructions"]),
            today=tuple(map(_plain, map(instruction_to_json, decided))),
        )


def instruction_to_json(instruction: Instruction) -> Json:
    """Returns an instruction as JSON values, without the specification."""
    if isinstance(instruction, Run):
        request = _dump(instruction.request, leave_out=("spec",))
        values = {**_dump(instruction, leave_out=("request",)), "request": request}
    elif type(getattr(instruction, "event", None)).__name__ == "SweepStarted":
        values = {"event": "SweepStarted"}
    else:
        values = _dump(instruction)
    # sets have another order in each process
    for need in values.get("needs", ()):
        need["nodes"].sort()
    if values.get("accelerators"):
        values["accelerators"].sort()
    return {"kind": type(instruction).__name__, **values}


def _input_to_json(given: DriverStarted | Input) -> Json:
    if not isinstance(given, DriverStarted):
        return _dump(given)
    return {
        **_dump(given, leave_out=("space", "spec")),
        "spec": given.spec.for_workers.model_dump(mode="json"),
        "baseline": given.space.baseline.as_dict(),
        "plans": len(given.space.candidates),
    }


def _input(dumped: Json) -> Input:
    values = {name: value for name, value in dumped.items() if name != "kind"}
    kind = _INPUTS[dumped["kind"]]
    return TypeAdapter(kind).validate_python(values)  # type: ignore[no-any-return]


def _started(dumped: Json) -> DriverStarted:
    spec = SweepSpec.model_validate(dumped["spec"])
    space = _stand_in(Plan.from_dict(dumped["baseline"]), int(dumped["plans"]), spec)
    types = get_type_hints(DriverStarted, localns={"Space": Space})
    values = {
        name: TypeAdapter(kind).validate_python(dumped[name])
        for name, kind in types.items()
        if name not in ("spec", "space")
    }
    return DriverStarted(spec=spec, space=space, **values)


def _stand_in(baseline: Plan, plans: int, spec: SweepSpec) -> Space:
    """Returns a space of that many plans: decisions depend on their number and the baseline."""
    space = space_of_plans([baseline], spec)
    return replace(space, table=space.table.take(np.zeros(plans, dtype=np.intp)))


def _dump(value: Any, leave_out: Sequence[str] = ()) -> Json:
    return {
        field.name: TypeAdapter(Any).dump_python(getattr(value, field.name), mode="json")
        for field in fields(value)
        if field.name not in leave_out
    }


def _plain(values: Json) -> Json:
    """Returns values as they are after a round trip through a file."""
    plain: Json = json.loads(json.dumps(values))
    return plain


def _lines(path: Path) -> Iterator[tuple[int, Json]]:
    try:
        texts = read_bounded(path, LOG_BYTES).splitlines()
    except OSError as error:
        raise UserError(f"the log {path} cannot be read: {error.strerror}") from error
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError:
            continue  # incomplete: its driver was killed
        if not isinstance(line, dict) or line.get("version") != VERSION:
            raise UserError(f"line {number} of {path} is not a decision of version {VERSION}")
        yield number, line
