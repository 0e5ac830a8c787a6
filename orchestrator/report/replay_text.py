"""Text of a replayed sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.report.format import plural
from orchestrator.tracking.decisions import ReplayedStep

Json = dict[str, Any]
_SILENT = ("Announce", "RequestCapacity")  # of no interest unless they differ


def replay_lines(shown: Sequence[ReplayedStep], steps: int) -> Iterator[str]:
    """Yields one line per input with what was decided on it, then a summary.

    Args:
        shown: The inputs to show.
        steps: Number of all inputs.
    """
    for step in shown:
        decided = [_instruction(one) for one in step.recorded if one["kind"] not in _SILENT]
        if decided or step.differs:
            yield f"{_time(step.at)}  {_words(step.kind)}: {', '.join(decided) or 'nothing'}"
        if step.differs:
            today = ", ".join(map(_instruction, step.today)) or "nothing"
            yield f"          today: {today}"
    differing = sum(step.differs for step in shown)
    inputs = plural(steps, "input")
    if differing:
        yield f"{inputs}; today's code decides otherwise on {differing}, the first of which matters"
    else:
        yield f"{inputs}; today's code decides the same on all of them"


def step_to_json(step: ReplayedStep) -> Json:
    """Returns a step as JSON values."""
    return {
        "line": step.line,
        "time": datetime.fromtimestamp(step.at, UTC).isoformat().replace("+00:00", "Z"),
        "input": step.kind,
        "instructions": list(step.recorded),
        "differs": step.differs,
        "today": list(step.today) if step.differs else None,
    }


def _instruction(instruction: Json) -> str:
    kind, group = str(instruction["kind"]), instruction.get("group")
    request = instruction.get("request") or {}
    ended = instruction.get("ended") or {}
    if kind == "Run":
        verb = "validate" if request["validation"] else "run"
        return f"{verb} trial {request['number']} on {group}"
    if kind == "StartGroup":
        return f"start {group}"
    number = instruction.get("number", ended.get("record", {}).get("number"))
    about = group or ("" if number is None else f"trial {number}")
    return f"{_words(kind)} {about}".rstrip()


def _words(name: str) -> str:
    """Returns the words of a name such as `TrialFinished`."""
    return "".join(f" {one.lower()}" if one.isupper() else one for one in name).strip()


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
