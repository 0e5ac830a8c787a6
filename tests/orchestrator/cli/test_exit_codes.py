"""Exit codes: one list, in the docs and in `--help`; `--debug` shows tracebacks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.cli.exit_codes import MEANINGS, ExitCode, exit_code_after
from orchestrator.cluster.runtime import RAY_LOGS_VARIABLE
from tests.orchestrator.cli.test_app import run

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
