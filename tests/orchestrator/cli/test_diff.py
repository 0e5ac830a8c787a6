"""`plimsoll diff` on studies of this folder and of another machine."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from orchestrator.cli import main
from tests.orchestrator.cli.studies import a_plan, a_study
from tests.outcomes import make_measured, make_oom

PLANS = (a_plan(), a_plan(micro_batch=2), a_plan(micro_batch=4))
FIRST = tuple(zip(PLANS, (make_measured(20.0), make_measured(30.0), make_oom()), strict=True))
SECOND = tuple(
    zip(PLANS, (make_measured(40.0), make_measured(60.0), make_measured(50.0)), strict=True)
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Returns the exit code, and the words of stdout and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["diff", *map(str, arguments)])
    said = capsys.readouterr()
    return int(caught.value.code or 0), " ".join(said.out.split()), " ".join(said.err.split())


def test_two_plans_of_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    spec = a_study(FIRST)
    code, out, _ = run(capsys, spec, "--trial", 0, "--trial", 1, "--out", "two.json")

    assert code == 0
    assert "trial 1 has 1.50 x (1.47 to 1.53) the speed of trial 0, beyond noise" in out
    assert json.loads(Path("two.json").read_text())["result"]["knobs"][0]["name"] == "micro_batch"
    assert run(capsys, "--trial", 0, "--trial", 1)[1] in out  # the latest sweep here


def test_two_studies_by_specification_name_and_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = a_study(FIRST, "one"), a_study(SECOND, "two")
    code, out, _ = run(capsys, one, two, "--out", "studies.json")

    assert code == 0
    assert "2 plans measured in both: two has 2.00 x the speed of one (median; 2.00 to 2.00)" in out
    assert json.loads(Path("studies.json").read_text())["result"]["compares"] == "studies"
    assert run(capsys, "one", "plimsoll-runs/two")[1] in out


def test_a_study_that_was_copied_from_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is a folder, a specification in it, a database next to it, or a database alone."""
    a_study(FIRST)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.chdir(theirs)
    a_study(SECOND)
    shutil.copytree("plimsoll-runs/demo", tmp_path / "copied")
    monkeypatch.chdir(tmp_path)
    Path("alone").mkdir()
    shutil.copy("copied/study.db", "alone/renamed.db")

    for there in ("copied", "copied/spec.yaml", "copied/study.db", "alone/renamed.db"):
        code, out, err = run(capsys, "demo.yaml", there)
        assert (code, err) == (0, ""), there
        assert "2 plans measured in both: demo (B) has 2.00 x" in out
        assert ("no specification next to it" in out) == (there == "alone/renamed.db")


def test_what_a_user_can_get_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = a_study(FIRST)
    Path("garbage.db").write_bytes(b"SQLite format 3\0" + b"x" * 500)
    Path("text.db").write_text("no database")
    with sqlite3.connect("empty.db") as empty:
        empty.execute("create table t (a)")
    empty.close()
    wrong = {
        (): "two studies are compared, but 0 named",
        (spec,): "two studies are compared, but 1 named",
        (spec, spec, spec): "two studies are compared, but 3 named",
        (spec, "missing"): "missing is neither a specification nor a study in plimsoll-runs",
        (spec, "x" * 5000): "is neither a specification nor a study",
        (spec, "garbage.db"): "garbage.db cannot be opened",
        (spec, "text.db"): "text.db: 1 fault",
        (spec, "empty.db"): "empty.db holds no study",
        (spec, spec, "--trial", 0, "--trial", 1): "name one study, or none",
        (spec, "--trial", 0): "two trials are compared, but --trial was given once",
        (spec, "--trial", 0, "--trial", 9): "study demo has no finished trial 9",
        (spec, spec, "--out", "demo.yaml/x.json"): "cannot be written",
    }
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    for arguments, words in wrong.items():
        code, _, err = run(capsys, *arguments)
        assert code == 2, arguments
        assert words in err
        assert "Traceback" not in err
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_a_database_of_several_studies_wants_a_specification(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared = {"storage": "sqlite:///shared.db"}
    one = a_study(FIRST, "one", study=shared)
    two = a_study(SECOND, "two", study=shared)

    code, _, err = run(capsys, one, "shared.db")

    assert code == 2
    assert "shared.db does not hold exactly one study, it holds one, two" in err
    assert run(capsys, one, two)[0] == 0
    named = run(capsys, "shared.db#one", "sqlite:///shared.db#two")
    assert "2 plans measured in both: two has 2.00 x the speed of one" in named[1]
    missing = run(capsys, one, "shared.db#three")[2]
    assert "shared.db holds no study three; it holds one, two" in missing
