"""How MLflow's page shows the sweep at first sight: its columns, order and charts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

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
