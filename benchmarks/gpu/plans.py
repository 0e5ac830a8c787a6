"""Plans of all models, measured once: a table that grows, over several commands if need be."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import MEASURED, Case, balanced, searched, space_of
from benchmarks.gpu.task import Figures, Task
from benchmarks.gpu.worker import Trial
from orchestrator.report.labels import outcome_words, plan_words
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
PLANS, TINY_PLANS = 6, 10  # of each model; some are meant to run out of memory
_FIRST = 3  # of each model, before any model has more
LONGEST_SECONDS = 120.0  # of a trial that is begun; a longer one ends by its deadline
_OBJECTIVE = {"min_steps": 6, "max_steps": 60, "max_seconds": 8.0, "interval": 0.01}
_TINY_OBJECTIVE = {"min_steps": 6, "max_steps": 6, "max_seconds": 0.3, "interval": 0.1}


def spec_of(case: Case, *, tiny: bool) -> SweepSpec:
    """A model with all knobs of one GPU."""
    return case.spec(
        tiny=tiny,
        space=searched(tiny=tiny),
        objective=_TINY_OBJECTIVE if tiny else _OBJECTIVE,
        budget={"trial_seconds": LONGEST_SECONDS},
    )


def measure(task: Task) -> Figures:
    """Measures what is missing while there is time."""
    wanted = TINY_PLANS if task.tiny else PLANS
    for count in (min(_FIRST, wanted), wanted):
        lacking = sum(_measure_up_to(task, case, count, seed) for seed, case in enumerate(MEASURED))
    return {"measured": len(read(task.out / FILE)), "lacking": lacking}


def _measure_up_to(task: Task, case: Case, wanted: int, seed: int) -> int:
    """Measures plans of a model up to a number; returns how many time was too short for."""
    file = task.out / FILE
    done = {row["key"] for row in read(file) if row["model"] == case.name}
    if len(done) >= wanted or not task.has(LONGEST_SECONDS):
        return max(wanted - len(done), 0)
    spec = spec_of(case, tiny=task.tiny)
    table = space_of(spec, task.worker.here(spec)).table
    missing = [plan for plan in balanced(table, wanted, seed) if plan.key not in done]
    for number, plan in enumerate(missing):
        if not task.has(LONGEST_SECONDS):
            return len(missing) - number
        trial = task.worker.measure(spec, plan)
        print(f"{case.name}: {plan_words(plan)}: {outcome_words(trial.outcome)}", flush=True)
        append(file, row_of(case.name, plan, trial))
    return 0


def row_of(model: str, plan: Plan, trial: Trial) -> dict[str, Any]:
    """A trial as a row; what nobody knows has no cell. Bytes and seconds, as columns say."""
    outcome = trial.outcome
    told: dict[str, Any] = {
        "model": model,
        "key": plan.key,
        "words": plan_words(plan),
        "outcome": outcome.kind,
        "device": trial.fingerprint.device_name,
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
            told["detail"] = outcome_words(outcome)
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


def append(file: Path, row: Mapping[str, Any]) -> None:
    """Adds a row, which is on disk when this returns."""
    text = file.read_text("utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # what a command that was killed left of a row
        file.write_text(whole, "utf-8")
    with file.open("a", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, COLUMNS, restval="", lineterminator="\n")
        if not whole:
            writer.writeheader()
        writer.writerow({name: "" if v is None else _cell(v) for name, v in row.items()})


def number(row: Mapping[str, str], name: str) -> float:
    """A cell as a number; nan where there is none."""
    return float(row.get(name) or "nan")


def _cell(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
