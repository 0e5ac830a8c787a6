"""A shared MLflow: a real PostgreSQL database, and a real server that stops and restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.events import SweepEnded, TrialEnded
from orchestrator.study.study import check_study
from orchestrator.tracking.mlflow_callback import MlflowCallback
from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.tracking.mlflow_store import store_uri
from orchestrator.tracking.mlflow_view import Pages, sweep_pages
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec
from tests.orchestrator.records import make_records, make_space, make_spec, sweep
from tests.outcomes import make_measured
from tests.proxies import proxy_to
from tests.rigs.mlflow_server import mlflow_server, serves
from tests.rigs.postgres import PASSWORD, QUOTED, Server

ROOT = Path(__file__).parents[3]
LOGS = """
import sys
from tests.orchestrator.tracking.test_mlflow_shared import logged, shared
sys.exit(logged(shared(sys.argv[1]), sys.argv[2]).problem)
"""
SERVER_SECONDS = 90


def shared(uri: str, folder: str = "runs") -> SweepSpec:
    return make_spec(tracking={"uri": uri}, study={"folder": folder})


def logged(
    spec: SweepSpec, study: str, between: Callable[[int], None] = lambda _: None
) -> MlflowCallback:
    """Runs a sweep of five trials with a callback; `between` gets the number of ended trials."""
    # in the end, a server of a busy machine is tried for longer than users are made to wait
    patience = {"close_seconds": 2 * SERVER_SECONDS, "last_seconds": SERVER_SECONDS}
    listener = MlflowCallback(say=lambda _: None, head_start_seconds=0, **patience)
    records = make_records(make_space(spec), [make_measured(20.0 + n) for n in range(5)])
    for event, state in sweep(spec, make_space(spec), records, study=study):
        listener.on_event(event, state)
        if isinstance(event, TrialEnded):
            between(len(state.records))
        if isinstance(event, SweepEnded):
            break
    listener.close()
    return listener


def runs_of(uri: str, study: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(study)
    if experiment is None:
        return []
    return list(client.search_runs([experiment.experiment_id]))


def trials_of(uri: str, study: str) -> list[str]:
    """Returns the numbers of trials with complete runs."""
    return sorted(
        run.data.tags["plimsoll.trial"]
        for run in runs_of(uri, study)
        if "mlflow.parentRunId" in run.data.tags and run.info.status == "FINISHED"
    )


@pytest.fixture(scope="module")
def store(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two sweeps find the database empty at the same time, each as if on its own machine."""
    uri = postgres.new_database()
    folders = [tmp_path_factory.mktemp(name) for name in ("anns", "bobs")]
    # MLflow's own lock is a file in TMPDIR
    environments = [{**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(f)} for f in folders]
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context((folder / "log").open("w+")) for folder in folders]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", LOGS, uri, name], cwd=folder, env=environment, stderr=log
            )
            for name, folder, environment, log in zip(
                ("anns", "bobs"), folders, environments, logs, strict=True
            )
        ]
        codes = [process.wait(240) for process in processes]
    said = "".join((folder / "log").read_text() for folder in folders)
    assert codes == [0, 0], said
    assert PASSWORD not in said
    return uri


@pytest.mark.thorough
def test_two_sweeps_that_find_an_empty_database_both_log(store: str) -> None:
    for name in ("anns", "bobs"):
        assert trials_of(store, name) == ["0", "1", "2", "3", "4"]
        assert len(runs_of(store, name)) == 6
    check_tracking(shared(store))
    pages = sweep_pages(shared(store), "anns")
    assert "/#/experiments/" in pages.trials
    assert pages.answer is not None
    assert sweep_pages(shared(store), "nobodys") == Pages(trials="http://127.0.0.1:5000")


@pytest.mark.parametrize(
    ("revision", "words"),
    [
        ("451aebb31d03", "older MLflow (schema 451aebb31d03, MLflow "),  # MLflow 0.9's
        ("ffffffffffff", "newer MLflow (schema ffffffffffff) than the "),
    ],
)
def test_a_database_of_another_version(
    revision: str, words: str, database: str, postgres: Server
) -> None:
    name = database.rpartition("/")[2]
    check_tracking(shared(database))  # an empty one: its tables are made by who writes first
    for statement in (
        "CREATE TABLE experiments (experiment_id INTEGER)",
        "CREATE TABLE alembic_version (version_num VARCHAR(32))",
        f"INSERT INTO alembic_version VALUES ('{revision}')",
    ):
        postgres.execute(statement, name)

    with pytest.raises(StudyError) as caught:
        check_tracking(shared(database))

    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert PASSWORD not in message
    assert QUOTED not in message
    upgrade = "`mlflow db upgrade postgresql://ann@127.0.0.1:"
    assert (upgrade in message) == ("older" in words)


def test_a_store_of_the_installed_version_is_known(
    tmp_path: Path, mlflow_store: Callable[[Path], None]
) -> None:
    """The installed MLflow created it, so it has the newest revision."""
    mlflow_store(tmp_path)

    check_tracking(make_spec(study={"folder": str(tmp_path)}))


def test_a_file_of_another_version(tmp_path: Path) -> None:
    import sqlite3

    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as file:
        file.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        file.execute("INSERT INTO alembic_version VALUES ('451aebb31d03')")
        file.commit()

    with pytest.raises(StudyError, match=r"`mlflow db upgrade sqlite:///.*/mlflow\.db`"):
        check_tracking(make_spec(study={"folder": str(tmp_path)}))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_studys_storage_is_no_mlflow_store(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file = f"sqlite:///{tmp_path}/both.db"
    uri = file if kind == "sqlite" else request.getfixturevalue("database")
    both = make_spec(study={"storage": uri, "folder": str(tmp_path)}, tracking={"uri": uri})
    check_study(both, "one")

    with pytest.raises(StudyError, match="MLflow needs a database of its own"):
        check_tracking(both)


@pytest.mark.thorough
def test_a_server_that_is_killed_and_comes_back_holds_every_trial_once(
    store: str, tmp_path: Path, unused_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reply is lost, then the server; missing trials are logged when it is back."""
    with contextlib.ExitStack() as stack, proxy_to(unused_port) as line:
        server = stack.enter_context(mlflow_server(store, unused_port, tmp_path))
        wait_for(lambda: serves(unused_port))
        uri = f"http://127.0.0.1:{line.port}"
        spec = shared(uri, str(tmp_path / "runs"))
        check_tracking(spec)
        line.swallow(b"runs/create", 2)

        def between(ended: int) -> None:
            if ended == 2:
                wait_for(lambda: len(trials_of(store, "goes-on")) >= 1)
                os.killpg(server.pid, signal.SIGKILL)
            if ended == 4:
                stack.enter_context(mlflow_server(store, unused_port, tmp_path))
                wait_for(lambda: serves(unused_port))

        listener = logged(spec, "goes-on", between)

        assert line.swallowed == 1
        assert listener.problem is None
    assert capsys.readouterr().out == ""  # there a view is, or lines of JSON
    assert trials_of(store, "goes-on") == ["0", "1", "2", "3", "4"]
    runs = runs_of(store, "goes-on")
    assert len(runs) == 6
    assert {run.info.status for run in runs} == {"FINISHED"}


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + SERVER_SECONDS
    while not done():
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.fixture
def unused_port() -> int:
    from tests.rigs.ports import free_port

    return free_port()


@pytest.mark.thorough
def test_nothing_that_mlflow_keeps_holds_a_password(store: str, postgres: Server) -> None:
    import psycopg

    name = store.rpartition("/")[2]
    tables = postgres.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name)
    with psycopg.connect(postgres.url(name)) as connection:
        rows = [
            str(row)
            for (table,) in tables
            for row in connection.execute(f'SELECT * FROM "{table}"').fetchall()  # type: ignore[call-overload]
        ]
    artifacts = [
        file.read_text(errors="replace")
        for folder in Path(store_artifacts(store)).glob("*")
        for file in folder.rglob("*")
        if file.is_file()
    ]

    assert len(rows) > 100
    assert any("spec.yaml" in text or "tracking:" in text for text in artifacts)
    for text in (*rows, *artifacts):
        assert PASSWORD not in text
        assert QUOTED not in text


def store_artifacts(store: str) -> str:
    """Returns the artifact folder next to that of the first sweep."""
    run = runs_of(store_uri(shared(store)), "anns")[0]
    return str(Path(run.info.artifact_uri.removeprefix("file://")).parents[2])
