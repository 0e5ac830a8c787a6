"""The recordings that are kept: whole, and each of the plans of its specification."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published.reader import read
from search_spaces.plan_table import KNOB_NAMES
from search_spaces.space import build_space
from search_spaces.specification.load import load_spec
from tests.orchestrator.cli.studies import planned_context

FOLDER = Path(__file__).parents[3] / "benchmarks" / "surfaces"
TABLES = sorted(FOLDER.glob("*.csv"))
REPEATS = 3
BEST, OF_THE_BEST = 24, 12  # how many plans have more repeats, and how many


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_recording_has_every_plan_of_its_specification_and_no_other(path: Path) -> None:
    spec = load_spec(path.with_suffix(".yaml"))
    ranks = spec.cluster.workers
    assert isinstance(ranks, int)
    table = build_space(planned_context(spec, ranks), ranks).table
    plans = [table.plan(row) for row in range(len(table))]
    knobs = [
        name
        for name in KNOB_NAMES
        if name != "accumulation" and len({getattr(plan, name) for plan in plans}) > 1
    ]

    measured = Counter((row["repeat"], *(row[name] for name in knobs)) for row in rows_of(path))
    repeats = Counter(key[1:] for key in measured)

    assert set(measured.values()) == {1}
    assert set(repeats) == {tuple(cell(getattr(plan, name)) for name in knobs) for plan in plans}
    assert Counter(repeats.values()) == {REPEATS: len(repeats) - BEST, OF_THE_BEST: BEST}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_recording_is_worth_searching(path: Path) -> None:
    rows = rows_of(path)
    rates = [float(row["samples_per_s"]) for row in rows if row["samples_per_s"]]

    ran_out = sum(row["oom"] == "true" for row in rows)
    assert 0.1 <= ran_out / len(rows) <= 0.35
    assert max(rates) > 2 * min(rates)
    assert path.stat().st_size < 2 * 2**20


def test_what_reads_published_tables_reads_recordings() -> None:
    tables = read(FOLDER)

    assert {run.source for run in tables.runs} == {path.stem for path in TABLES}
    reasons = {skip.reason for skip in tables.skipped}
    assert reasons <= {"no measurement: neither throughput nor memory nor out of memory"}
