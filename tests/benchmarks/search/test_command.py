"""The command: one object of JSON, a table, and sentences for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.published.baseline import ConstantMfu
from benchmarks.published.forecaster import Forecaster
from benchmarks.search.__main__ import main
from benchmarks.search.competitors.known import COMPETITORS, WRONG
from tests.benchmarks.published.rows import write_table
from tests.benchmarks.search.test_races import KEYS
from tests.benchmarks.search.test_surfaces import few, rows
from tests.benchmarks.search.toys import write_csv

QUICK = ["--seeds", "2", "--jobs", "1", "--samplers", "plimsoll,random"]


def without(_: str) -> Forecaster:
    return ConstantMfu()


def test_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path, "table", rows())
    status = main([str(tmp_path), "--json", "--seeds", "1", "--jobs", "1"], without)
    told = json.loads(capsys.readouterr().out)

    assert status == 0
    assert list(told["surfaces"]) == list(told["facts"]) == ["table"]
    assert set(told["surfaces"]["table"]) == set(told["overall"]) == set(COMPETITORS)
    assert all(set(figures) == KEYS for figures in told["surfaces"]["table"].values())
    assert all(set(figures) == KEYS for figures in told["overall"].values())
    assert told["facts"]["table"]["candidates"] == 12
    assert told["facts"]["table"]["infeasible"] == 2


def test_a_lone_table_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = write_csv(tmp_path / "lone.csv", few())

    assert main([str(lone), "--json", *QUICK], without) == 0
    assert list(json.loads(capsys.readouterr().out)["surfaces"]) == ["lone"]


def test_samplers_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = str(write_csv(tmp_path / "lone.csv", few()))
    named = ["--samplers", "random, plimsoll, times shuffled,gp", "--seeds", "1", "--jobs", "1"]

    assert main([lone, "--json", *named], without) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["overall"]) == ["random", "plimsoll, times shuffled", "gp"]
    assert main([lone, "--samplers", "randon"], without) == 2
    assert "no sampler is called 'randon'" in capsys.readouterr().err


def test_wrong_forecasts_are_more_samplers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lone = str(write_csv(tmp_path / "lone.csv", few()))

    assert main([lone, "--json", "--wrong", *QUICK], without) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["overall"]) == ["plimsoll", "random", *WRONG]


def test_table_and_kept_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = str(write_csv(tmp_path / "lone.csv", few()))
    kept = tmp_path / "figures.json"

    assert main([lone, "--out", str(kept), *QUICK], without) == 0
    assert "plimsoll" in capsys.readouterr().out
    assert json.loads(kept.read_text("utf-8"))["seeds"] == 2


def test_nothing_to_race_on_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none")], without) == 2
    assert "is no directory" in capsys.readouterr().err
    write_csv(tmp_path / "table.csv", [{"micro_batch": 1, "samples_per_s": ""}])
    assert main([str(tmp_path)], without) == 2
    assert "no rows that form a surface" in capsys.readouterr().err
