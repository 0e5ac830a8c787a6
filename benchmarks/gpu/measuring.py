"""Plans of all models, measured once: a table that grows, over several commands if need be."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import CASES, SHORT_CASES, TINY_CASES, Case, searched
from benchmarks.gpu.choosing import balanced, space_of
from benchmarks.gpu.command import Asked
from benchmarks.gpu.found import Cells
from orchestrator.cli.console import print_line
from orchestrator.core.inputs import TrialFinished
from orchestrator.report.labels import brief_outcome, plan_words
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory

FILE = "plans.csv"
COLUMNS = (
    *("model", "key", "words", "outcome", "samples_per_second", "step_seconds"),
    *("step_seconds_low", "step_seconds_high", "reserved_bytes", "held_bytes", "allocated_bytes"),
    *("outside_bytes", "device_bytes", "limit_bytes", "wanted_bytes", "residual_bytes", "phase"),
    *("build_seconds", "steps_seconds", "compile_seconds", "total_seconds", "throttled", "detail"),
    *("device", "date", "plan"),
)
PLANS, SHORT_PLANS, TINY_PLANS = (
    28,
    6,
    10,
)  # of each model; some of them run out of memory, as they are meant to
_FIRST = 3  # of each model, before any model has more
LONGEST_SECONDS = 120.0  # of a trial that is begun; a longer one ends by its deadline
_OBJECTIVE = {"min_steps": 6, "max_steps": 60, "max_seconds": 8.0, "interval": 0.01}
_TINY_OBJECTIVE = {"min_steps": 6, "max_steps": 6, "max_seconds": 0.3, "interval": 0.1}


def cases(asked: Asked) -> tuple[Case, ...]:
    """The models whose plans are measured."""
    if asked.tiny:
        return TINY_CASES
    return SHORT_CASES if asked.short else CASES


def plans_of_each(asked: Asked) -> int:
    """Returns the number of plans of a model that are measured."""
    if asked.tiny:
        return TINY_PLANS
    return SHORT_PLANS if asked.short else PLANS


def spec_of(case: Case, *, tiny: bool) -> SweepSpec:
    """A model with all knobs of one GPU."""
    return case.spec(
        tiny=tiny,
        space=searched(tiny=tiny),
        objective=_TINY_OBJECTIVE if tiny else _OBJECTIVE,
        budget={"trial_seconds": LONGEST_SECONDS},
    )


def measured_rows(asked: Asked, each: int | None = None) -> tuple[list[dict[str, str]], str]:
    """Measures what is missing while there is time; all rows, and what is left to measure.

    Args:
        asked: Where, until when, and whether with tiny models.
        each: Plans of each model; as many as usual if None.
    """
    file = asked.out / FILE
    if asked.judge:
        return read(file), ""
    wanted = each or plans_of_each(asked)
    for count in (min(_FIRST, wanted), wanted):
        lacking = _measure_up_to(asked, count)
    asked.free_device()  # so that nothing is on it when forecasts are made
    return read(file), f"{lacking} plans are not measured" if lacking else ""


def _measure_up_to(asked: Asked, wanted: int) -> int:
    """Measures plans of each model up to a number; returns how many time was too short for."""
    file = asked.out / FILE
    rows = read(file)
    lacking = 0
    for seed, case in enumerate(cases(asked)):  # other plans of each model
        done = {row["key"] for row in rows if row["model"] == case.name}
        if len(done) >= wanted:
            continue
        if not asked.has(LONGEST_SECONDS if not asked.tiny else 0.0):
            lacking += wanted - len(done)
            continue
        spec = spec_of(case, tiny=asked.tiny)
        space = space_of(spec, asked.group.here(spec))
        plans = balanced(space.table, wanted, seed)
        missing = [plan for plan in plans if plan.key not in done]
        lacking += len(missing)
        for row in _measure(asked, case, spec, missing):
            append(file, row)
            lacking -= 1
    return lacking


def _measure(
    asked: Asked, case: Case, spec: SweepSpec, plans: Sequence[Plan]
) -> Iterator[dict[str, Any]]:
    for number, plan in enumerate(plans):
        if not asked.has(0.0 if asked.tiny else LONGEST_SECONDS):
            return
        report = asked.group.measure(spec, plan, number=number)
        print_line(f"{case.name}: {plan_words(plan)}: {brief_outcome(report.outcome)}")
        yield row_of(case.name, plan, report)


def row_of(model: str, plan: Plan, report: TrialFinished) -> dict[str, Any]:
    """A trial as a row; what nobody knows has no cell. Bytes and seconds, as columns say."""
    outcome, seen = report.outcome, report.fingerprint
    told: dict[str, Any] = {
        "model": model,
        "key": plan.key,
        "words": plan_words(plan),
        "outcome": outcome.kind,
        "device": seen.device_name if seen else None,
        "date": time.strftime("%Y-%m-%d"),
        "plan": json.dumps(plan.as_dict(), separators=(",", ":")),
    }
    match outcome:
        case Measured():
            told |= _measured_cells(outcome)
        case OutOfMemory():
            told |= {
                "wanted_bytes": outcome.wanted_bytes,
                "limit_bytes": outcome.limit_bytes,
                "phase": outcome.phase,
                "detail": outcome.detail,
            }
        case _:
            told["detail"] = brief_outcome(outcome)
    if (costs := getattr(outcome, "costs", None)) is not None:
        told |= {
            "build_seconds": costs.build_seconds,
            "steps_seconds": costs.steps_seconds,
            "compile_seconds": costs.compile_seconds,
            "total_seconds": costs.total_seconds,
            "residual_bytes": costs.residual_bytes,
        }
    return told


def _measured_cells(outcome: Measured) -> Mapping[str, Any]:
    memory, step = outcome.memory, outcome.step_seconds
    return {
        "samples_per_second": outcome.samples_per_second.value,
        "step_seconds": step.value,
        "step_seconds_low": step.low,
        "step_seconds_high": step.high,
        "reserved_bytes": memory.reserved_bytes,
        "held_bytes": memory.peak_bytes,
        "allocated_bytes": memory.allocated_bytes,
        "outside_bytes": memory.anatomy.outside,
        "device_bytes": outcome.conditions.device_memory_bytes,
        "limit_bytes": memory.limit_bytes,
        "throttled": " ".join(outcome.conditions.throttled),
    }


def read(file: Path) -> list[dict[str, str]]:
    """The rows of a table; a last one that was cut short when it was written is left out."""
    if not file.exists():
        return []
    text = file.read_text("utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def append(file: Path, row: Cells, columns: Sequence[str] = COLUMNS) -> None:
    """Adds a row, which is on disk when this returns."""
    text = file.read_text("utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # what a command that was killed left of a row
        file.write_text(whole, "utf-8")
    with file.open("a", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, columns, restval="", lineterminator="\n")
        if not whole:
            writer.writeheader()
        writer.writerow({name: "" if v is None else _cell(v) for name, v in row.items()})


def number(row: Mapping[str, str], name: str) -> float:
    """A cell as a number; nan where there is none."""
    return float(row.get(name) or "nan")


def _cell(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
