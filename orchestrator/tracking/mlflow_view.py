"""Default view of a sweep on MLflow's page: columns, order and charts; and its addresses."""

import json
import os
import sys
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from orchestrator.tracking.mlflow_reachability import brief_requests
from orchestrator.tracking.mlflow_store import artifact_uri, is_server, sqlite_file, store_uri
from orchestrator.workspace import experiment_name, with_driver
from search_spaces.errors import require
from search_spaces.safety.files import packaged_table
from search_spaces.safety.redaction import without_password
from search_spaces.specification.schema import SweepSpec

VIEW_KEY = "plimsoll"
# MLflow stores a shared view as a tag of the experiment; ?viewStateShareKey= opens it
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
# without this query the page opens in the GenAI section: traces, judges, prompts
KIND_QUERY = "workflowType=machine_learning"
VIEW_QUERY = f"viewStateShareKey={VIEW_KEY}&{KIND_QUERY}"
# without this tag the page asks if the experiment is about GenAI before it shows a run
KIND_TAG = ("mlflow.experimentKind", "custom_model_development")


def _view() -> Any:
    return packaged_table(__package__, "mlflow_view.yaml")


def shown_params() -> Collection[str]:
    """Returns the knobs that have a column."""
    columns: Mapping[str, int] = _view()["columns"]["params"]
    return columns.keys()


def view_state(fixed: Collection[str] = (), *, lossy: bool = False) -> str:
    """Returns the value of `VIEW_TAG` as JSON: best plans first, with columns to compare.

    Args:
        fixed: Knobs with one value in the whole study, which are not shown.
        lossy: True if plans may change the numerics.
    """
    hidden = {*fixed} if lossy else {*fixed, "lossy"}
    widths = {
        f"{kind}.`{name}`": width
        for kind, columns in _view()["columns"].items()
        for name, width in columns.items()
        if name not in hidden
    }
    state = deepcopy(_view()["state"])
    state["compareRunCharts"][0]["selectedParams"] = [
        name
        for name in shown_params()
        if name not in {*hidden, "accumulation"}  # derived
    ]
    return json.dumps(
        state
        | {
            "selectedColumns": list(widths),
            "columnOrder": ["attributes.`Run Name`", *widths],
            "columnWidths": {"attributes.`Run Name`": 330, **widths},
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Addresses for a browser.

    If the store lacks the sweep or cannot be read, `trials` is MLflow's first page and `sweep` is
    None.
    """

    trials: str
    sweep: str | None = None


def sweep_pages(spec: SweepSpec, study: str, *, port: int = 5000) -> Pages:
    """Looks up the table of a sweep's trials, and the page of its own run, in the store."""
    uri = store_uri(spec)
    home = without_password(uri).rstrip("/") if is_server(spec) else f"http://127.0.0.1:{port}"
    file = sqlite_file(uri)
    if file is not None and not file.is_file():  # opening the store would create it
        return Pages(trials=home)
    with brief_requests():
        from orchestrator.tracking.mlflow_client import find_sweep, open_client, tracking_errors

        try:
            client = open_client(uri)
            experiment = client.get_experiment_by_name(experiment_name(spec, study))
            if experiment is None:
                return Pages(trials=home)
            run = find_sweep(client, experiment.experiment_id, study)
        except tracking_errors():  # MLflow's first page works without the lookup
            return Pages(trials=home)
    runs = f"{home}/#/experiments/{experiment.experiment_id}/runs"
    sweep = None if run is None else f"{runs}/{run.info.run_id}?{KIND_QUERY}"
    return Pages(trials=f"{runs}?{VIEW_QUERY}", sweep=sweep)


def ui_command(spec: SweepSpec, pages: Pages, *, port: int = 5000) -> list[str]:
    """Returns the command that shows the store: MLflow's UI, reachable from this machine only.

    The UI has one server process, because the default of four takes over 1 GiB. If the store is a
    tracking server, the command opens its page in a browser instead.

    Raises:
        MissingExtraError: If the command needs MLflow and it is not installed.
    """
    if is_server(spec):
        return [sys.executable, "-m", "webbrowser", pages.trials]
    require("mlflow")
    artifacts = artifact_uri(spec)
    assert artifacts is not None
    command = [sys.executable, "-m", "mlflow", "ui"]
    if _holds_no_secret(spec):
        command += ["--backend-store-uri", store_uri(spec)]
    command += ["--artifacts-destination", artifacts]  # served: it names no folder to sweeps
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


def ui_environment(spec: SweepSpec) -> dict[str, str]:
    """Returns the environment of that command, with the secrets that arguments would expose.

    MLflow's jobs, which judge answers of language models, are off unless the user enabled them:
    a killed server leaves their queues in shared memory.
    """
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    if not (is_server(spec) or _holds_no_secret(spec)):
        environment["MLFLOW_BACKEND_STORE_URI"] = with_driver(store_uri(spec))
    return environment


def _holds_no_secret(spec: SweepSpec) -> bool:
    return sqlite_file(store_uri(spec)) is not None
