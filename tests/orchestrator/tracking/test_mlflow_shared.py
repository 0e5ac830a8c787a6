"""A shared MLflow: a real PostgreSQL database, and a real server that stops and restarts."""

import contextlib
import os
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
from orchestrator.tracking.mlflow_view import Pages, sweep_pages
from search_spaces.errors import StudyError
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.records import make_records, make_space, make_spec, sweep
from tests.outcomes import make_measured
from tests.rigs.postgres import PASSWORD, Server

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
LOGS = """
import sys
from tests.orchestrator.tracking.test_mlflow_shared import logged, shared
sys.exit(logged(shared(sys.argv[1]), sys.argv[2]).problem)
"""
SERVER_SECONDS = 600


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
        codes = [process.wait(600) for process in processes]
    said = "".join((folder / "log").read_text() for folder in folders)
    assert codes == [0, 0], said
    assert PASSWORD not in said
    return uri


def test_two_sweeps_that_find_an_empty_database_both_log(store: str) -> None:
    for name in ("anns", "bobs"):
        assert trials_of(store, name) == ["0", "1", "2", "3", "4"]
        assert len(runs_of(store, name)) == 6
    check_tracking(shared(store))
    pages = sweep_pages(shared(store), "anns")
    assert "/#/experiments/" in pages.trials
    assert pages.sweep is not None
    assert sweep_pages(shared(store), "nobodys") == Pages(trials="http://127.0.0.1:5000")


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


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + SERVER_SECONDS
    while not done():
        assert time.monotonic() < until
        time.sleep(0.2)
