"""The command: figures, a table, and sentences for what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published.baseline import ConstantMfu
from benchmarks.published.forecaster import Forecaster
from benchmarks.search.__main__ import main
from benchmarks.search.competitors.known import COMPETITORS, WRONG
from tests.benchmarks.published.rows import write_table
from tests.benchmarks.search.test_races import KEYS
from tests.benchmarks.search.test_surfaces import few, rows
from tests.benchmarks.search.toys import write_csv


def without(_: str) -> Forecaster:
    return ConstantMfu()


def raced(place: Path, *options: str) -> dict[str, Any]:
    """Returns the figures of a race."""
    out = place.with_suffix(".json")
    assert main([str(place), "--out", str(out), "--jobs", "1", *options], without) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_all_competitors_race_unless_some_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path, "table", rows())
    told = raced(tmp_path, "--seeds", "1")

    assert list(told["surfaces"]) == list(told["facts"]) == ["table"]
    assert set(told["surfaces"]["table"]) == set(told["overall"]) == set(COMPETITORS)
    assert all(set(figures) == KEYS for figures in told["surfaces"]["table"].values())
    assert all(set(figures) == KEYS for figures in told["overall"].values())
    assert told["facts"]["table"]["candidates"] == 12
    assert told["facts"]["table"]["infeasible"] == 2
    assert "commit" in told
    assert "deepspeed autotuner" in capsys.readouterr().out


def test_a_lone_table_and_wrong_forecasts(tmp_path: Path) -> None:
    lone = write_csv(tmp_path / "lone.csv", few())

    told = raced(lone, "--wrong", "--seeds", "2", "--samplers", "plimsoll", "random")

    assert list(told["surfaces"]) == ["lone"]
    assert told["seeds"] == 2
    assert list(told["overall"]) == ["plimsoll", "random", *WRONG]


def test_nothing_to_race_on_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none")], without) == 2
    assert "is no directory" in capsys.readouterr().err
    write_csv(tmp_path / "table.csv", [{"micro_batch": 1, "samples_per_s": ""}])
    assert main([str(tmp_path)], without) == 2
    assert "no rows that form a surface" in capsys.readouterr().err
