"""How MLflow's page shows the sweep at first sight: its columns, order and charts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.tracking.mlflow_reachability import brief_requests
from orchestrator.tracking.mlflow_store import artifact_uri, is_server, sqlite_file, store_uri
from orchestrator.workspace import experiment_name, with_driver
from search_spaces.errors import require
from search_spaces.spec.redaction import without_password
from search_spaces.spec.schema import SweepSpec

VIEW_KEY = "plimsoll"
# mlflow keeps a shared view as a tag of the experiment; ?viewStateShareKey= opens it
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
# without it the page lies among those of GenAI: traces, judges, prompts
KIND_QUERY = "workflowType=machine_learning"
VIEW_QUERY = f"viewStateShareKey={VIEW_KEY}&{KIND_QUERY}"
# without it the page asks whether the experiment is about GenAI before it shows a run
KIND_TAG = ("mlflow.experimentKind", "custom_model_development")

_METRICS = {  # name: width in pixels that shows it whole
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
_TAGS = {"kind": 65, "outcome": 120, "feasible": 80, "lossy": 70, "reason": 330}
_DATASET = {"attributes.`Dataset`": 230}  # the last column: the same in most sweeps
_SECTION = "plimsoll-charts"


def view_state(fixed: Collection[str] = (), *, lossy: bool = False) -> str:
    """The value of `VIEW_TAG`: fastest first, with what a reader compares, as JSON.

    Args:
        fixed: Knobs that have one value in the whole study, of which nothing is to be seen.
        lossy: Whether plans may change the numerics.
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
            "orderByKey": "metrics.`samples_per_second`",
            "orderByAsc": False,
            "selectedColumns": list(widths),
            "columnOrder": ["attributes.`Run Name`", *widths],
            "columnWidths": {"attributes.`Run Name`": 330, **widths},
            "runsHiddenMode": "SHOWALL",
            "compareRunSections": [
                {**section, "isReordered": False, "deleted": False, "isGenerated": False}
            ],
            "compareRunCharts": [_knobs_to_speed(params), _memory_to_speed()],
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


def _knobs_to_speed(params: Iterable[str]) -> dict[str, Any]:
    return _chart(
        "PARALLEL",
        "Knobs, memory and speed",
        selectedParams=[name for name in params if name != "accumulation"],  # follows
        selectedMetrics=["memory_share", "samples_per_second"],
        showAllRuns=True,
    )


def _memory_to_speed() -> dict[str, Any]:
    return _chart(
        "SCATTER",
        "Speed over memory",
        xaxis={"key": "memory_share", "type": "METRIC"},
        yaxis={"key": "samples_per_second", "type": "METRIC"},
    )


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
        from orchestrator.tracking.mlflow_client import find_sweep, open_client, tracking_errors

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
