"""`plimsoll report` of an ended sweep, which reads only the study."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.study.reader import load_state
from orchestrator.workspace import save_spec
from tests.orchestrator.cli.commands import command
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
