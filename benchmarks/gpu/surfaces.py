"""Complete grids of plans for two models, each plan measured once and a tenth of them three times.

    python -m benchmarks.gpu.surfaces [--out DIR] [--tiny]

The specifications lie in `benchmarks/surfaces/gpu`, and so do the tables, in the columns of
`python -m benchmarks.record`. A command measures what is missing while there is time, on a worker
without Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import CASES
from benchmarks.gpu.choosing import space_of
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.verdicts import Verdict
from benchmarks.record.model_shape import shape_of
from benchmarks.record.order import Turn, sample, turns
from benchmarks.record.progress import Progress
from benchmarks.record.rows import Subject, row_of, varying_knobs
from benchmarks.record.table import Table, keep_spec, kept_spec, refuse_other_spec, set_id
from orchestrator.cli.console import print_line
from search_spaces.plan import Plan
from search_spaces.spec.load import load_spec
from search_spaces.spec.schema import SweepSpec
from workers.prepare import prepare

FOLDER = Path("benchmarks/surfaces/gpu")  # of the specifications, and of the tables of real GPUs
LEAST_PLANS, MODELS = 200, 2
REPEATS, TENTH = 3, 10
_LONGEST_SECONDS = 90.0  # of a trial that is begun
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One grid, and how much of it is measured."""

    name: str
    plans: int
    wanted: int
    done: int
    repeated: int
    out_of_memory: int
    best: float | None  # samples per second of its fastest measurement
    spread: float | None  # of repeats: median of (largest - smallest) / median


def order_of(plans: Sequence[Plan], device: str) -> tuple[Turn, ...]:
    """Every plan once in a random order, then the repeats of a tenth of them."""
    once = turns(plans, 1, device, _SEED)
    again = sample(plans, -(-len(plans) // TENTH), _SEED)
    repeats = turns(again, REPEATS, device, _SEED)
    return (*once, *(turn for turn in repeats if turn.repeat > 1))


def measure(asked: Asked) -> Found:
    """Goes on with each grid in turn."""
    found: list[Surface] = []
    for given in sorted(FOLDER.glob("*.yaml")):
        spec = load_spec(given)
        table = FOLDER / f"{given.stem}.csv"
        if asked.tiny:
            spec = tiny_of(spec)
            table = asked.out / "surfaces" / f"{given.stem}.csv"
        if asked.tiny and found:
            break
        found.append(record(asked, spec, given.stem, table))
    return judged(found)


def tiny_of(spec: SweepSpec) -> SweepSpec:
    """A grid of a few plans of the same model, cut down, on a CPU."""
    case = next(case for case in CASES if case.model == spec.model.name)
    space: dict[str, Any] = {
        "engine": ["torch"],
        "micro_batch": [4, 16],
        "checkpoint_ratio": [0.0, 1.0],
        "checkpoint_mode": ["full"],
        "attention": ["sdpa"],
        "compile": [False],
        "optimizer": ["adamw_fused"],
    }
    objective = {"min_steps": 6, "max_steps": 6, "max_seconds": 0.2, "interval": 0.1}
    return case.spec(tiny=True, space=space, objective=objective)


def record(asked: Asked, spec: SweepSpec, name: str, file: Path) -> Surface:
    """Measures what a grid lacks while there is time; what it has by then."""
    facts = prepare(spec)
    identity = set_id(spec, name)
    subject = Subject(
        name=name, spec=spec, facts=facts, shape=shape_of(spec.model), set_id=identity
    )
    if kept_spec(file).exists():
        refuse_other_spec(spec, file)
    table = Table(file, identity)
    here = asked.group.here(spec)
    space = space_of(spec, here)
    order = order_of(tuple(space.candidates), here.device)
    knobs = varying_knobs(space.table)
    table.begin(knobs)
    left = table.missing(order, knobs)
    keep_spec(spec, name, file)
    progress = Progress(len(order), len(left), print_line)
    for turn in left:
        if not asked.has(0.0 if asked.tiny else _LONGEST_SECONDS):
            break
        report = asked.group.measure(spec, turn.plan, number=len(table.rows))
        assert report.fingerprint is not None
        row = row_of(subject, turn.plan, turn.repeat, report.outcome, report.fingerprint, knobs)
        table.add(row)
        progress.ended(turn, report)
    return told(name, len(space.candidates), len(order), table.rows, knobs)


def told(
    name: str, plans: int, wanted: int, rows: Sequence[dict[str, str]], knobs: Sequence[str]
) -> Surface:
    """Summarizes the rows of a table: how much of their grid is measured, best and spread."""
    by_plan: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row.get("samples_per_s"):
            key = tuple(row[knob] for knob in knobs)
            by_plan.setdefault(key, []).append(float(row["samples_per_s"]))
    spreads = [
        (max(rates) - min(rates)) / sorted(rates)[len(rates) // 2]
        for rates in by_plan.values()
        if len(rates) >= REPEATS
    ]
    return Surface(
        name=name,
        plans=plans,
        wanted=wanted,
        done=len(rows),
        repeated=sum(row["repeat"] == str(REPEATS) for row in rows),
        out_of_memory=sum(row["oom"] == "true" for row in rows if row["repeat"] == "1"),
        best=max((max(rates) for rates in by_plan.values()), default=None),
        spread=sorted(spreads)[len(spreads) // 2] if spreads else None,
    )


def judged(found: Sequence[Surface]) -> Found:
    """Judges whether there are enough grids, large enough and complete."""
    large = [one for one in found if one.plans >= LEAST_PLANS]
    repeated = [one for one in found if one.repeated * TENTH >= one.plans]
    left = sum(one.wanted - one.done for one in found)
    rows: list[dict[str, Any]] = [
        {field: getattr(one, field) for field in Surface.__dataclass_fields__} for one in found
    ]
    wanted = str(MODELS)
    return Found(
        figures={"surfaces": rows},
        rows=rows,
        shown=("name", "plans", "done", "wanted", "out_of_memory", "best", "spread"),
        verdicts=(
            Verdict(
                what=f"grids of {LEAST_PLANS} plans or more",
                asked=wanted,
                reached=str(len(large)),
                holds=len(large) >= MODELS,
            ),
            Verdict(
                what=f"a tenth measured {REPEATS} times",
                asked=wanted,
                reached=str(len(repeated)),
                holds=len(repeated) >= MODELS,
            ),
        ),
        left=f"{left} measurements are missing" if left else "",
    )


if __name__ == "__main__":
    main("surfaces", __doc__, measure)
