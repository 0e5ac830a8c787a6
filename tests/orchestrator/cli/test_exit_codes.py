"""Exit codes: one list, in the docs and in `--help`; `--debug` shows tracebacks."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.exit_codes import MEANINGS, ExitCode, exit_code_after, sweep_exit_code
from orchestrator.cluster.runtime import RAY_LOGS_VARIABLE
from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import AllTried
from orchestrator.report.sweep_text import best_sentence
from search_spaces.trial import Cancelled, Crashed, DoesNotTrain, Outcome, Stopped
from tests.orchestrator.cli.test_app import run
from tests.orchestrator.records import BEGAN, make_spec, make_state
from tests.outcomes import make_measured, make_oom

ROOT = Path(__file__).parents[3]


def test_the_table_of_the_docs_is_the_one_of_the_code() -> None:
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    table = "\n".join(["| code | meaning |", "|---|---|", *rows])

    assert f"{table}\n\n" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert set(MEANINGS) == set(ExitCode)


def test_help_ends_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0

    told = capsys.readouterr().out.partition("Exit codes:")[2]
    words = " ".join(told.split())
    for code, meaning in MEANINGS.items():
        assert f"{int(code)} {' '.join(meaning.split())}" in words


def test_a_users_error_has_a_traceback_only_with_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(RAY_LOGS_VARIABLE, raising=False)

    assert run("check", "none.yaml") == ExitCode.USER_ERROR
    assert "Traceback" not in capsys.readouterr().err

    assert run("check", "none.yaml", "--debug") == ExitCode.USER_ERROR
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "SpecError" in said
    assert said.splitlines()[-1].startswith("  - file: does not exist")
    assert RAY_LOGS_VARIABLE not in os.environ


def test_a_machine_that_cannot_go_on_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/ray")

    monkeypatch.setattr("orchestrator.cli.schema.json_schema", full)

    assert run("schema") == ExitCode.TRY_AGAIN
    said = capsys.readouterr().err
    assert said == (
        "/tmp/ray: No space left on device: make room there, then run the same command again\n"
    )
    assert exit_code_after(OSError(errno.ENOENT, "no such file")) == ExitCode.INTERNAL_ERROR


def test_a_fault_of_ours_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("orchestrator.cli.schema.json_schema")  # as if it had been forgotten

    assert run("schema") == ExitCode.INTERNAL_ERROR
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.startswith("Plimsoll failed (NameError: ")
    assert "--debug shows" in said

    assert run("schema", "--debug") == ExitCode.INTERNAL_ERROR
    assert "Traceback" in capsys.readouterr().err


FAILED = Crashed(cause="exception", rank=0, phase="build", detail="ImportError: no triton here")


@pytest.mark.parametrize(
    ("outcomes", "code", "words"),
    [
        ((FAILED, replace(FAILED, cause="worker_died", detail="so")), 75, "no triton here"),
        ((FAILED, Cancelled(cause=Stopped(by="Ctrl-C"))), 75, "no triton here"),
        ((FAILED, make_oom()), 1, "no plan is feasible"),
        ((replace(FAILED, cause="layout"), FAILED), 1, "no plan is feasible"),
        ((DoesNotTrain(norm="0", costs=None),), 1, "no plan is feasible"),
        ((Cancelled(cause=Stopped(by="Ctrl-C")),), 1, "no plan is feasible"),
        ((FAILED, make_measured()), 0, "is best"),
    ],
)
def test_n10_a_machine_that_fails_every_plan_is_no_negative_result(
    outcomes: tuple[Outcome, ...], code: int, words: str
) -> None:
    spec = make_spec(validation={"enabled": False})
    state = replace(
        make_state(outcomes, spec), ended=SweepEnded(reason=AllTried(plans=2), at=BEGAN)
    )

    assert sweep_exit_code(state) == code
    assert words in best_sentence(state)
    machine = "this machine or environment fails every plan: first cause ImportError"
    assert (machine in best_sentence(state)) == (code == ExitCode.TRY_AGAIN)
