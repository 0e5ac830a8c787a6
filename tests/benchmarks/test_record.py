"""Recordings: what is measured next, and a small one by real ranks that goes on from its file."""

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record import record, turns
from benchmarks.search.tables import grids_in
from benchmarks.space import varying
from search_spaces.plan_table import PlanTable
from tests.plans import ddp_plan
from tests.workers.values import LLAMA, a_spec

PLANS = PlanTable.of(
    ddp_plan(micro_batch=micro, accumulation=16 // micro) for micro in (1, 2, 4, 8)
)
KNOBS = ("micro_batch",)


def row_of(repeat: int, micro: int, rate: str) -> dict[str, Any]:
    return {"repeat": str(repeat), "micro_batch": str(micro), "samples_per_s": rate}


def test_every_plan_comes_once_and_then_the_fastest_in_rounds() -> None:
    rows: list[dict[str, Any]] = []
    seen: dict[int, list[int]] = {}
    for repeat, plan in turns(PLANS, rows, KNOBS, top=2, rounds=20):
        rate = "" if plan.micro_batch == 8 else str(plan.micro_batch)
        rows.append(row_of(repeat, plan.micro_batch, rate))  # 8 ran out of memory
        seen.setdefault(repeat, []).append(plan.micro_batch)

    assert varying(PLANS) == KNOBS
    assert sorted(seen[0]) == [1, 2, 4, 8]
    assert all(sorted(seen[repeat]) == [2, 4] for repeat in range(1, 21))
    assert {tuple(seen[repeat]) for repeat in range(1, 21)} == {(2, 4), (4, 2)}


def test_a_recording_that_was_stopped_goes_on() -> None:
    rows = [row_of(0, micro, str(micro)) for micro in (1, 2, 4, 8)] + [row_of(1, 4, "4")]

    left = [(repeat, plan.micro_batch) for repeat, plan in turns(PLANS, rows, KNOBS, 2, 2)]

    assert left[0] == (1, 8)
    assert sorted(left[1:]) == [(2, 4), (2, 8)]


@pytest.mark.thorough
def test_real_ranks_are_recorded_as_a_table_that_searches_read(tmp_path: Path) -> None:
    space = {"engine": ["torch"], "zero_stage": [0, 2], "micro_batch": [1, 2]}
    space |= {"batching": ["padded"]}
    space |= {"checkpoint_ratio": [0.0], "attention": ["sdpa"], "tensor": [1], "pipeline": [1]}
    spec = a_spec(model=LLAMA, space=space, objective={"max_steps": 6, "max_seconds": 2})
    file = tmp_path / "tiny.csv"

    assert record(spec, file, minutes=0, top=2, rounds=2) == 4 + 2 * 2
    assert record(spec, file, minutes=10, top=2, rounds=2) == 0

    with file.open() as opened:
        rows = [*csv.DictReader(opened)]
    assert [row["repeat"] for row in rows] == ["0"] * 4 + ["1"] * 2 + ["2"] * 2
    began = [float(row["began"]) for row in rows]
    assert began == sorted(began)
    (grid,) = grids_in(file)
    assert [entry.rate for entry in grid.entries] == [float(row["samples_per_s"]) for row in rows]
