"""Default view of a sweep on MLflow's page: columns, order and charts; and its addresses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from orchestrator.tracking.mlflow_reachability import brief_requests
from orchestrator.tracking.mlflow_store import artifact_uri, is_server, sqlite_file, store_uri
from orchestrator.workspace import experiment_name, with_driver
from search_spaces.errors import require
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

_METRICS = {  # name: width in pixels that shows the whole name
    "rank": 50,
    "pooled_samples_per_second": 195,
    "samples_per_second": 150,
    "forecast_samples_per_second": 215,
    "memory_share": 115,
    "peak_memory_gib": 140,
    "step_seconds": 110,
    "mfu": 85,
}
_PARAMS = {
    "strategy": 140,
    "tensor": 65,
    "pipeline": 75,
    "micro_batch": 100,
    "accumulation": 105,
    "checkpoint_ratio": 125,
    "attention": 85,
    "batching": 85,
    "precision": 85,
}
SHOWN_PARAMS = frozenset(_PARAMS)
_TAGS = {"kind": 65, "outcome": 120, "feasible": 80, "lossy": 70, "detail": 330}
_DATASET = {"attributes.`Dataset`": 230}  # the last column: the same in most sweeps
_SECTION = "plimsoll-charts"


def view_state(fixed: Collection[str] = (), *, lossy: bool = False) -> str:
    """Returns the value of `VIEW_TAG` as JSON: best plans first, with columns to compare.

    Args:
        fixed: Knobs with one value in the whole study, which are not shown.
        lossy: True if plans may change the numerics.
    """
    params = {name: width for name, width in _PARAMS.items() if name not in fixed}
    widths = {
        **{f"metrics.`{name}`": width for name, width in _METRICS.items()},
        **{f"params.`{name}`": width for name, width in params.items()},
        **{f"tags.`{name}`": width for name, width in _TAGS.items() if lossy or name != "lossy"},
        **_DATASET,
    }
    section = {"uuid": _SECTION, "name": "Plans", "display": True, "columns": 1, "cardHeight": 400}
    return json.dumps(
        {
            "orderByKey": "metrics.`rank`",
            "orderByAsc": True,
            "selectedColumns": list(widths),
            "columnOrder": ["attributes.`Run Name`", *widths],
            "columnWidths": {"attributes.`Run Name`": 330, **widths},
            "runsHiddenMode": "SHOWALL",
            "compareRunSections": [
                {**section, "isReordered": False, "deleted": False, "isGenerated": False}
            ],
            "compareRunCharts": [
                _chart(
                    "PARALLEL",
                    "Knobs, memory and speed",
                    selectedParams=[name for name in params if name != "accumulation"],  # derived
                    selectedMetrics=["memory_share", "samples_per_second"],
                    showAllRuns=True,
                ),
                _chart(
                    "SCATTER",
                    "Speed over memory",
                    xaxis={"key": "memory_share", "type": "METRIC"},
                    yaxis={"key": "samples_per_second", "type": "METRIC"},
                ),
            ],
        }
    )


def _chart(kind: str, title: str, **settings: Any) -> dict[str, Any]:
    return {
        "uuid": f"plimsoll-{kind.lower()}",
        "type": kind,
        "displayName": title,
        "metricSectionId": _SECTION,
        "runsCountToCompare": 100,
        "deleted": False,
        "isGenerated": False,
        **settings,
    }


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
    command += ["--default-artifact-root", artifacts]
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
