"""The common front: files, exit codes, the table last, and what is run again."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import PARTS, run_parts, told
from benchmarks.gpu.command import AGAIN, MISSED, UNUSABLE, Asked, code_of, run
from benchmarks.gpu.found import Found, as_csv
from benchmarks.gpu.verdicts import Verdict, at_least, at_most
from search_spaces.errors import ClusterError

ROOT = Path(__file__).parents[3]
HOLDS = at_most("error", 0.03, 0.01)
MISSES = at_least("tau", 0.9, 0.5)


def found(*verdicts: Verdict, left: str = "") -> Found:
    rows = [{"plan": "a", "seconds": 1.25}, {"plan": "b, with a comma", "seconds": None}]
    return Found(
        figures={"plans": 2}, rows=rows, shown=("plan", "seconds"), verdicts=verdicts, left=left
    )


def test_a_target_is_judged_by_what_was_reached() -> None:
    assert (HOLDS.asked, HOLDS.reached, HOLDS.holds) == ("below 3.0%", "1.0%", True)
    assert at_most("error", 0.03, 0.03).holds is False
    assert (MISSES.asked, MISSES.reached, MISSES.holds) == ("0.90 or more", "0.50", False)
    assert at_least("tau", 0.9, 0.9).holds is True
    assert at_least("tau", 0.9, None).holds is None


@pytest.mark.parametrize(
    ("told", "tiny", "code"),
    [
        (found(HOLDS), False, 0),
        (found(HOLDS, MISSES), False, MISSED),
        (found(HOLDS, MISSES), True, 0),
        (found(MISSES, left="3 plans"), False, AGAIN),
        (found(HOLDS, left="3 plans"), True, AGAIN),
        (found(at_least("tau", 0.9, None)), False, 0),
    ],
)
def test_exit_codes(told: Found, tiny: bool, code: int) -> None:
    assert code_of(told, tiny=tiny) == code


def test_a_run_writes_json_and_csv_and_its_table_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Asked] = []

    def measure(asked: Asked) -> Found:
        seen.append(asked)
        return found(HOLDS, MISSES)

    assert run("speed", "What it does.", measure, ["--tiny", "--out", str(tmp_path)]) == 0

    kept = json.loads((tmp_path / "speed.json").read_text())
    assert kept["part"] == "speed"
    assert kept["tiny"] is True
    assert kept["plans"] == 2
    assert kept["device"] == "cpu"
    assert kept["versions"]["torch"]
    assert [verdict["holds"] for verdict in kept["verdicts"]] == [True, False]
    rows = list(csv.DictReader((tmp_path / "speed.csv").read_text().splitlines()))
    assert rows == [{"plan": "a", "seconds": "1.25"}, {"plan": "b, with a comma", "seconds": ""}]
    said = capsys.readouterr().out
    assert "MISSED" in said
    assert "tiny sizes" in said
    assert seen[0].device == "cpu"
    assert 500 < seen[0].left_seconds <= 540


def test_without_a_gpu_it_says_so_and_measures_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(asked: Asked) -> Found:
        raise AssertionError("nothing is to be measured")

    assert run("speed", None, measure, ["--out", str(tmp_path)]) == UNUSABLE
    assert "no CUDA GPU can be reached" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_a_user_can_mend_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(asked: Asked) -> Found:
        raise ClusterError("the worker did not come up")

    assert run("speed", None, measure, ["--tiny", "--out", str(tmp_path)]) == UNUSABLE
    assert "speed: the worker did not come up" in capsys.readouterr().err


def test_columns_are_those_of_all_rows() -> None:
    assert as_csv([{"a": 1}, {"b": True}]) == "a,b\n1,\n,True\n"


def test_parts_run_again_while_there_is_something_left() -> None:
    answers = {"memory": [AGAIN, AGAIN, 0], "speed": [MISSED], "sweep": [AGAIN] * 4}
    typed: list[str] = []

    def start(command: Sequence[str]) -> int:
        part = command[2].rpartition(".")[2]
        typed.append(part)
        return answers[part].pop(0)

    assert run_parts(["memory", "speed"], ["--tiny"], 4, start) == MISSED
    assert typed == ["memory", "memory", "memory", "speed"]
    assert run_parts(["sweep"], [], 4, start) == AGAIN


def test_a_part_that_cannot_run_does_not_end_the_others() -> None:
    typed: list[str] = []

    def start(command: Sequence[str]) -> int:
        typed.append(command[2].rpartition(".")[2])
        return UNUSABLE if typed[-1] == "ceilings" else 0

    assert run_parts(PARTS, [], 4, start) == UNUSABLE
    assert tuple(typed) == PARTS


def test_a_machine_without_a_gpu_is_told_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--short", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    assert ended.returncode == UNUSABLE
    assert ended.stderr.count("no CUDA GPU can be reached") == 1
    assert "Traceback" not in ended.stderr


def test_all_targets_are_told_together(tmp_path: Path) -> None:
    for part, verdict in (("memory", HOLDS), ("speed", MISSES)):
        kept = {"verdicts": [verdict.as_dict()]}
        (tmp_path / f"{part}.json").write_text(json.dumps(kept))

    assert [(part, one["holds"]) for part, one in told(PARTS, tmp_path)] == [
        ("memory", True),
        ("speed", False),
    ]


_WITHOUT = """
import sys
for name in ("ray", "mlflow"):
    sys.modules[name] = None
for part in {parts}:
    __import__("benchmarks.gpu." + part)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_no_part_needs_ray_or_mlflow_to_start() -> None:
    command = [sys.executable, "-c", _WITHOUT.format(parts=PARTS)]

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
