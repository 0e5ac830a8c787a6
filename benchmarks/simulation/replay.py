"""Decides on all that happened in a past sweep again, and compares the decisions.

    python -m benchmarks.simulation.replay RUN_FOLDER

RUN_FOLDER is a study's folder, with the `journal.jsonl` that drivers write. Ends with 1 if
today's code decides otherwise; the first difference is what matters.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from orchestrator.core import inputs
from orchestrator.core.controller_state import ControllerState
from orchestrator.core.events import SweepStarted
from orchestrator.core.handle import handle, start
from orchestrator.core.inputs import DriverStarted, Input
from orchestrator.journal import FILE, instruction_values
from orchestrator.tracking.events import VERSION, to_json
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.safety.files import LOG_BYTES, read_bounded
from search_spaces.space import Space, space_of_plans
from search_spaces.specification.schema import SweepSpec

Json = dict[str, Any]
_INPUTS: dict[str, Any] = {
    name: value
    for name, value in vars(inputs).items()
    if isinstance(value, type) and value in Input.__args__
}
_STARTED = "DriverStarted"
_NO_BATCH = 10**9  # a micro-batch that no plan has
_SILENT = ("Announce", "RequestCapacity")  # of no interest unless they differ


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """One input of a past sweep.

    Attributes:
        at: When it came, in seconds since the epoch.
        kind: Its kind.
        recorded: The instructions that followed then, as JSON values.
        today: Those that today's core decides on; equal if it decides the same.
    """

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
        UserError: If the file cannot be read, or is no journal.
    """
    state: ControllerState | None = None
    proposed = _proposed(path)
    for number, line in _lines(path):
        try:
            given, at, kind = line["input"], float(line["input"]["at"]), str(line["input"]["kind"])
            if kind == _STARTED:
                state, decided = start(_started(given, proposed))
            elif state is None:
                continue  # its driver's first line was lost
            else:
                state, decided = handle(state, _input(given))
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            raise UserError(
                f"line {number} of {path} is not an input of version {VERSION}"
            ) from error
        yield ReplayedStep(
            at=at,
            kind=kind,
            recorded=tuple(line["instructions"]),
            today=tuple(json.loads(to_json(instruction_values(one))) for one in decided),
        )


def replay_lines(steps: Sequence[ReplayedStep]) -> Iterator[str]:
    """Yields one line per input with what was decided on it, then a summary."""
    for step in steps:
        decided = [_instruction(one) for one in step.recorded if one["kind"] not in _SILENT]
        if decided or step.differs:
            time = datetime.fromtimestamp(step.at, UTC).strftime("%H:%M:%S")
            yield f"{time}  {_words(step.kind)}: {', '.join(decided) or 'nothing'}"
        if step.differs:
            today = ", ".join(map(_instruction, step.today)) or "nothing"
            yield f"          today: {today}"
    differing = sum(step.differs for step in steps)
    how = f"otherwise on {differing}" if differing else "the same on all of them"
    yield f"{len(steps)} inputs; today's code decides {how}"


def _instruction(instruction: Json) -> str:
    kind, group = str(instruction["kind"]), instruction.get("group")
    if kind == "Run":
        request = instruction["request"]
        verb = "validate" if request["validation"] else "run"
        return f"{verb} trial {request['number']} on {group}"
    ended = instruction.get("ended") or {}
    number = instruction.get("number", ended.get("record", {}).get("number"))
    about = group or ("" if number is None else f"trial {number}")
    return f"{_words(kind)} {about}".rstrip()


def _words(name: str) -> str:
    """Returns the words of a name such as `TrialFinished`."""
    return "".join(f" {one.lower()}" if one.isupper() else one for one in name).strip()


def _input(dumped: Json) -> Input:
    values = {name: value for name, value in dumped.items() if name != "kind"}
    return TypeAdapter(_INPUTS[dumped["kind"]]).validate_python(values)


def _proposed(path: Path) -> list[Plan]:
    """Returns all plans that any driver has tried."""
    inputs = (line.get("input", {}) for _, line in _lines(path))
    trials = (one for given in inputs for one in (given, *given.get("interrupted", ())))
    plans = [one["plan"] for one in trials if "plan" in one and one.get("in_space", True)]
    return [Plan.from_dict(plan) for plan in plans]


def _started(dumped: Json, proposed: Sequence[Plan]) -> DriverStarted:
    spec = SweepSpec.model_validate(dumped["spec"])
    baseline = Plan.from_dict(dumped["baseline"])
    tried = [Plan.from_dict(record["plan"]) for record in dumped["records"]]
    untried = [plan for plan in dict.fromkeys((baseline, *proposed)) if plan not in tried]
    # as many as there were: decisions depend on the number, and on those that were tried
    others = int(dumped["untried"]) - len(untried)
    untried += [replace(baseline, micro_batch=_NO_BATCH)] * others
    plans = untried + tried[:1] * (int(dumped["plans"]) - len(untried))
    space, values = _stand_in(plans, baseline, spec), _fields(SweepStarted, dumped)
    if understanding := values["understanding"]:  # requests to workers repeat these
        model = understanding.model
        space = replace(space, step=model.step, dependences=model.dependences)
    sweep = SweepStarted(spec=spec, space=space, **values)
    return DriverStarted(sweep=sweep, **_fields(DriverStarted, dumped))


def _fields(kind: type, dumped: Json) -> Json:
    """Returns the fields of a class that a line has, without specification and space."""
    return {
        name: TypeAdapter(hint).validate_python(dumped[name])
        for name, hint in get_type_hints(kind, localns={"Space": Space}).items()
        if name in dumped and name not in ("spec", "space")
    }


def _stand_in(plans: Sequence[Plan], baseline: Plan, spec: SweepSpec) -> Space:
    space = space_of_plans(plans, spec)
    row_of = {plan: row for row, plan in enumerate(dict.fromkeys(plans))}
    rows = np.array([row_of[plan] for plan in plans], dtype=np.intp)
    return replace(space, table=space.table.take(rows), baseline=baseline)


def _lines(path: Path) -> Iterator[tuple[int, Json]]:
    try:
        texts = read_bounded(path, LOG_BYTES).splitlines()
    except OSError as error:
        raise UserError(f"the journal {path} cannot be read: {error.strerror}") from error
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError:
            continue  # incomplete: its driver was killed
        if not isinstance(line, dict) or line.get("version") != VERSION:
            raise UserError(f"line {number} of {path} is not an input of version {VERSION}")
        yield number, line


def main(arguments: Sequence[str] | None = None) -> int:
    """Replays a sweep; returns 1 if today's code decides otherwise, 2 if there is no journal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER")
    asked = parser.parse_args(arguments)
    try:
        steps = list(replay(asked.folder / FILE))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(replay_lines(steps)))
    return int(any(step.differs for step in steps))


if __name__ == "__main__":
    sys.exit(main())
