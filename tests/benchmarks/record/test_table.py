"""The table on disk: grows by whole rows, and belongs to one specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.record.order import Turn, turns
from benchmarks.record.table import (
    RecordingError,
    Table,
    keep_spec,
    set_id,
)
from search_spaces.spec.load import load_spec
from tests.benchmarks.record.values import SPEC, row
from tests.orchestrator.records import make_plan, make_spec

ID = set_id(SPEC, "tiny")
KNOBS = ("micro_batch", "checkpoint_ratio")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "surface.csv"


def begun(path: Path) -> Table:
    table = Table(path, ID)
    table.begin(KNOBS)
    return table


def test_rows_are_there_as_soon_as_they_are_added(path: Path) -> None:
    path = path.parent / "new" / path.name
    begun(path).add(row(knobs=KNOBS))

    (again,) = begun(path).rows
    assert again["micro_batch"] == "4"
    assert again["checkpoint_ratio"] == "0.5"
    assert again["repeat"] == "1"
    assert len(path.read_text().splitlines()) == 2


def test_a_row_that_was_cut_short_is_taken_away(path: Path) -> None:
    begun(path).add(row(knobs=KNOBS))
    whole = path.read_text()
    path.write_text(whole + "recording tiny,,llama")

    table = begun(path)

    assert len(table.rows) == 1
    assert path.read_text() == whole


def test_rows_of_another_specification_are_refused(path: Path) -> None:
    begun(path).add(row(knobs=KNOBS))

    with pytest.raises(RecordingError, match="was recorded with another specification"):
        Table(path, set_id(make_spec(), "tiny"))


PLANS = tuple(make_plan(micro_batch=micro, accumulation=8 // micro) for micro in (1, 2, 4))


def test_what_has_a_row_is_not_measured_again(path: Path) -> None:
    table = begun(path)
    order = turns(PLANS, 2, "cpu")
    assert table.missing(order, KNOBS) == order

    table.add(row(knobs=KNOBS))  # of micro-batch 4, repeat 1

    left = Table(path, ID).missing(order, KNOBS)
    assert set(order) - set(left) == {Turn(plan=PLANS[2], repeat=1)}
    assert len(left) == 5


def test_rows_of_plans_that_are_not_asked_for_are_refused(path: Path) -> None:
    table = begun(path)
    table.add(row(knobs=KNOBS))

    with pytest.raises(RecordingError, match=r"not asked for \(1\): .* --limit"):
        table.missing(turns(PLANS[:2], 2, "cpu"), KNOBS)


def test_other_columns_are_refused(path: Path) -> None:
    begun(path)

    with pytest.raises(
        RecordingError, match=r"has other columns .*\(checkpoint_ratio, zero_stage\)"
    ):
        Table(path, ID).begin(("micro_batch", "zero_stage"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n", "is no recording"),
        ("ranking_sets,repeat\n1\n", "not as many cells"),
        ("ranking_sets,repeat\n1,2,3\n", "not as many cells"),
        (b"\xff\xfe\n", "is no table"),
    ],
)
def test_another_file_is_left_alone(path: Path, content: str | bytes, words: str) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(RecordingError, match=words):
        Table(path, ID)


def test_the_specification_is_kept_beside_the_table(path: Path) -> None:
    keep_spec(SPEC, "tiny", path)

    kept = load_spec(path.with_suffix(".yaml"))
    assert kept.study.name == "tiny"
    assert set_id(kept, "tiny") == ID


def test_what_a_measurement_does_not_depend_on_may_change() -> None:
    other = SPEC.model_copy(
        update={
            "budget": make_spec(budget={"trials": 3}).budget,
            "objective": SPEC.objective.model_copy(update={"racing": False, "headroom": 0.2}),
        }
    )

    assert set_id(other, "tiny") == ID
    assert set_id(make_spec(cluster={"workers": 1}), "tiny") != ID
