"""Log of a sweep's decisions: what the controller was told, and what it decided on that.

Each line is JSON with one input of `core.handle` and the instructions that followed. The study
stays the truth, and sweeps resume from it; the log shows how a sweep came to it, and
`benchmarks/simulation/replay.py` lets today's core decide on the same inputs again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from orchestrator.core.inputs import DriverStarted, Input
from orchestrator.core.instructions import Instruction, Run
from search_spaces.specification.schema import SweepSpec

VERSION: Final = 1
FILE = "decisions.jsonl"
Json = dict[str, Any]


def decisions_file(spec: SweepSpec, name: str) -> Path:
    """Returns the path of a study's log of decisions."""
    return Path(spec.study.folder, name, FILE)


def decision_line(given: DriverStarted | Input, instructions: Sequence[Instruction]) -> str:
    """Returns the line of an input, and of what the controller decided on it."""
    line = {
        "version": VERSION,
        "input": {"kind": type(given).__name__, **_input_to_json(given)},
        "instructions": [instruction_to_json(one) for one in instructions],
    }
    return json.dumps(line, separators=(",", ":"))


def instruction_to_json(instruction: Instruction) -> Json:
    """Returns an instruction as JSON values, without the specification."""
    if isinstance(instruction, Run):
        request = _dump(instruction.request, leave_out=("spec",))
        values = {**_dump(instruction, leave_out=("request",)), "request": request}
    elif type(getattr(instruction, "event", None)).__name__ == "SweepStarted":
        values = {"event": "SweepStarted"}
    else:
        values = _dump(instruction)
    if "need" in values:
        values["need"]["nodes"].sort()  # sets have another order in each process
    return {"kind": type(instruction).__name__, **values}


def _input_to_json(given: DriverStarted | Input) -> Json:
    if not isinstance(given, DriverStarted):
        return _dump(given)
    table = given.space.table
    tried = {row for record in given.records for row in table.rows_of(record.plan).tolist()}
    return {
        **_dump(given, leave_out=("space", "spec", "understanding")),
        "spec": given.spec.for_workers.model_dump(mode="json"),
        "baseline": given.space.baseline.as_dict(),
        "plans": len(table),
        "untried": len(table) - len(tried),
    }


def _dump(value: Any, leave_out: Sequence[str] = ()) -> Json:
    return {
        field.name: TypeAdapter(Any).dump_python(getattr(value, field.name), mode="json")
        for field in fields(value)
        if field.name not in leave_out
    }
