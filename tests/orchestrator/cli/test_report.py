"""`plimsoll report` of an ended sweep, which reads only the study."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.study.reader import load_state
from orchestrator.workspace import save_spec
from tests.orchestrator.cli.commands import command
from tests.orchestrator.cli.studies import a_plan, a_study
from tests.orchestrator.cli.test_sync import swept
from tests.orchestrator.controller.sweeps import Sweep
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured
from tests.workers.values import LLAMA


def test_it_tells_how_the_sweep_ended_and_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = Sweep(make_spec(budget={"trials": 3, "minutes": 10, "trial_seconds": 60}))
    save_spec(ours.spec, "demo")
    ours.run(iter([make_measured(20.0, 0.3), make_measured(40.0, 0.8), make_measured(39.5, 0.5)]))
    ended = load_state(ours.spec, "demo").ended
    assert ended is not None

    with pytest.raises(SystemExit) as caught:
        main(["report"])

    assert caught.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "regret bound: none yet" in told  # two trials bound nothing


def test_the_page_is_written_from_the_study_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swept(model=LLAMA)

    code, told = command(capsys, "report", "--html")

    assert (code, told) == (0, "written: demo-report.html")
    page = (tmp_path / "demo-report.html").read_text(encoding="utf-8")
    assert "<h1>Trial 2 is best" in page
    code, told = command(capsys, "report", "--out", str(tmp_path / "demo-report.html" / "x.html"))
    assert code == 2
    assert "cannot be written" in told


def test_a_study_that_was_copied_from_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is a folder, a specification in it, a database next to it, or a database alone."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.chdir(theirs)
    a_study([(a_plan(), make_measured(20.0)), (a_plan(micro_batch=2), make_measured(30.0))])
    shutil.copytree("plimsoll-runs/demo", tmp_path / "copied")
    monkeypatch.chdir(tmp_path)
    Path("alone").mkdir()
    shutil.copy("copied/study.db", "alone/renamed.db")

    for there in ("copied", "copied/spec.yaml", "copied/study.db", "alone/renamed.db"):
        code, told = command(capsys, "report", there)
        assert code == 0, there
        assert "measured 2" in told, there
        assert ("no specification next to it" in told) == (there == "alone/renamed.db")


def test_a_file_that_is_no_study_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("garbage.db").write_bytes(b"SQLite format 3\0" + b"x" * 500)
    Path("text.db").write_text("no database")
    with sqlite3.connect("empty.db") as empty:
        empty.execute("create table t (a)")
    empty.close()
    wrong = {
        "missing": "missing is neither a specification nor a study in plimsoll-runs",
        "x" * 5000: "is neither a specification nor a study",
        "garbage.db": "garbage.db cannot be opened",
        "text.db": "text.db: 1 fault",
        "empty.db": "empty.db holds no study",
    }
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    for named, words in wrong.items():
        code, told = command(capsys, "report", named)
        assert code == 2, named
        assert words in told
        assert "Traceback" not in told
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
