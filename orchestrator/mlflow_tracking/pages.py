"""MLflow's pages of a sweep: their addresses, and the command that shows them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from orchestrator.mlflow_tracking.environment import brief_requests
from orchestrator.mlflow_tracking.store import (
    artifact_uri,
    is_server,
    sqlite_file,
    store_uri,
)
from orchestrator.mlflow_tracking.view_state import KIND_QUERY, VIEW_QUERY
from orchestrator.workspace import experiment_name, with_driver
from search_spaces.extras import require
from search_spaces.spec.addresses import without_password
from search_spaces.spec.schema import SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Addresses for a browser.

    `trials` is MLflow's first page where the store holds no such sweep or cannot be asked;
    `answer` is then None.
    """

    trials: str
    answer: str | None = None


def sweep_pages(spec: SweepSpec, study: str, *, port: int = 5000) -> Pages:
    """The table of a sweep's trials and the page of its own run, looked up by MLflow's client."""
    uri = store_uri(spec)
    home = without_password(uri).rstrip("/") if is_server(spec) else f"http://127.0.0.1:{port}"
    file = sqlite_file(uri)
    if file is not None and not file.is_file():  # which opening would make
        return Pages(trials=home)
    with brief_requests():
        from orchestrator.mlflow_tracking.client import find_sweep, open_client, tracking_errors

        try:
            client = open_client(uri)
            experiment = client.get_experiment_by_name(experiment_name(spec, study))
            if experiment is None:
                return Pages(trials=home)
            run = find_sweep(client, experiment.experiment_id, study)
        except tracking_errors():  # no page is lost for want of a shortcut to it
            return Pages(trials=home)
    runs = f"{home}/#/experiments/{experiment.experiment_id}/runs"
    answer = None if run is None else f"{runs}/{run.info.run_id}?{KIND_QUERY}"
    return Pages(trials=f"{runs}?{VIEW_QUERY}", answer=answer)


def ui_command(spec: SweepSpec, pages: Pages, *, port: int = 5000) -> list[str]:
    """The arguments of a process that shows the store: MLflow's UI, on this machine alone.

    One server process: the default of four holds over 1 GiB. Where the store is a tracking
    server, its page is opened in the browser instead.

    Raises:
        MissingExtraError: If MLflow is to be started and is not installed.
    """
    if is_server(spec):
        return [sys.executable, "-m", "webbrowser", pages.trials]
    require("mlflow")
    artifacts = artifact_uri(spec)
    assert artifacts is not None
    command = [sys.executable, "-m", "mlflow", "ui"]
    if _holds_no_secret(spec):
        command += ["--backend-store-uri", store_uri(spec)]
    command += ["--default-artifact-root", artifacts]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


def ui_environment(spec: SweepSpec) -> dict[str, str]:
    """All that process has in its environment; its arguments can be seen by everybody.

    Jobs, with which a server judges answers of language models, are off unless they were asked
    for: their queues stay in shared memory if the server is killed.
    """
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    if not (is_server(spec) or _holds_no_secret(spec)):
        environment["MLFLOW_BACKEND_STORE_URI"] = with_driver(store_uri(spec))
    return environment


def _holds_no_secret(spec: SweepSpec) -> bool:
    return sqlite_file(store_uri(spec)) is not None
