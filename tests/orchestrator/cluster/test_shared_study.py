"""A whole sweep on PostgreSQL: the server goes down and comes back, and no password leaks."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rigs.postgres import PASSWORD, QUOTED, Server
from benchmarks.rigs.ray_head import environment
from orchestrator.cli import main
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.study.reader import load_records
from orchestrator.study.spool import SPOOL_FILE
from orchestrator.workspace import STORAGE_VARIABLE, TRACKING_VARIABLE
from search_spaces.spec.load import load_spec
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.conftest import AWAY, TOKENS, Eventful

ROOT = Path(__file__).parents[3]
# the address is named once in the file and once in the environment
SPEC = """
model: {{name: "awkward_model:make", config: {{pass_seconds: 0.01}}}}
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 128, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 64]}}
objective: {{max_seconds: 2, interval: 0.0001, max_steps: 100000}}
validation: {{enabled: false}}
study: {{wait_minutes: 0.05, storage: "{storage}"}}
"""


def command(folder: Path, tracking: str, *arguments: str, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from orchestrator.cli import main; main()", *arguments],
        cwd=folder,
        env=environment(folder, PYTHONPATH=str(ROOT), **{TRACKING_VARIABLE: tracking}, **extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0,  # as some containers have it
    )


def reported(capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        main(["report"])
    written = capsys.readouterr()
    return ended.value.code or 0, written.out + written.err


def texts_in(folder: Path) -> list[str]:
    return [file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()]


def test_a_sweep_outlives_its_database(eventful: Eventful) -> None:
    assert AWAY in eventful.log
    assert "the study's storage is back after " in eventful.log


def test_no_secret_is_left(
    eventful: Eventful,
    postgres: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The copy of the specification has no password either, and works once it is set."""
    monkeypatch.chdir(eventful.folder)
    asked = eventful.folder / "sweep.yaml"
    text = asked.read_text()
    asked.unlink()  # which has it
    try:
        code, told = reported(capsys)
        assert code == 2
        assert "no password supplied" in told
        assert f"set {STORAGE_VARIABLE}" in told
        monkeypatch.setenv(STORAGE_VARIABLE, eventful.storage)
        code, table = reported(capsys)
        assert code == 0, table
        assert re.search(r"measured +3\b", table), table
        written = [*texts_in(eventful.folder), *texts_in(eventful.session)]
    finally:
        asked.write_text(text)

    assert list(eventful.session.rglob("raylet.out"))
    secrets = (PASSWORD, QUOTED, eventful.token, *TOKENS.values())
    for each in (eventful.log, told, table, *written):
        assert not [secret for secret in secrets if secret in each]
    for database in (eventful.storage, eventful.tracking):
        name = database.rpartition("/")[2]
        dump = everything_in(postgres, name)
        assert len(dump) > 1000
        assert not [secret for secret in secrets if secret in dump]
        assert ("trial_user_attributes" in dump) == (database == eventful.storage)
    there = [path for path in eventful.folder.rglob("*") if not path.is_symlink()]
    assert not [path for path in there if path.stat().st_mode & stat.S_IWOTH and path != asked]


@pytest.mark.thorough
def test_a_sweep_whose_database_stays_away_ends_and_goes_on_later(
    postgres: Server, tmp_path: Path
) -> None:
    storage = postgres.new_database()
    shutil.copy(awkward_model.__file__, tmp_path / "awkward_model.py")
    asked = tmp_path / "sweep.yaml"
    asked.write_text(SPEC.format(storage=storage))
    runs = tmp_path / "runs"
    sweep = command(tmp_path, f"sqlite:///{runs}/mlflow.db", "tune", "sweep.yaml", "--plain")
    assert sweep.stdout is not None
    lines: list[str] = []
    with sweep.stdout:
        for line in sweep.stdout:
            lines.append(line)
            if "trial 1 starts" in line:
                postgres.stop()
    said = "".join(lines)
    assert sweep.wait(60) == ExitCode.TRY_AGAIN, said
    assert "the same command resumes the sweep" in lines[-1]
    assert "Traceback" not in said
    (spooled,) = tmp_path.rglob(SPOOL_FILE)

    postgres.start()
    again = command(tmp_path, f"sqlite:///{runs}/mlflow.db", "tune", "sweep.yaml", "--plain")
    told = again.communicate(timeout=300)[0]
    assert again.returncode == 0, told
    assert not spooled.exists()
    records = load_records(load_spec(asked), "sweep")
    assert [record.plan.micro_batch for record in records] == [1, 64]
    assert [record.number for record in records] == [0, 1]  # and nothing ran again


def everything_in(server: Server, database: str) -> str:
    """Returns every row of every table."""
    names = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database)
    return "\n".join(
        f"{name}: {row}" for (name,) in names for row in server.execute(f'TABLE "{name}"', database)
    )
