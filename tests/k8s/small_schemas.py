"""The kinds of the Prometheus operator, as far as `k8s/` uses them.

Their definitions are not here: these are small schemas, written from the operator's API reference
(`PodMonitor` and `PrometheusRule`, monitoring.coreos.com/v1), with every other field forbidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

from tests.k8s.rendering import Resource

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_DURATION = {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?$", "minLength": 2}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": 1}


_RELABELING = _object(
    "targetLabel",
    sourceLabels=_list({"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}),
    targetLabel=_TEXT,
    replacement=_TEXT,
    regex=_TEXT,
    action={"enum": ["replace", "keep", "drop", "labelmap"]},
)
SCHEMAS = {
    "PodMonitor": _object(
        "selector podMetricsEndpoints",
        selector=_object("matchLabels", matchLabels=_TEXTS),
        podMetricsEndpoints=_list(
            _object("port", port=_TEXT, interval=_DURATION, relabelings=_list(_RELABELING))
        ),
    ),
    "PrometheusRule": _object(
        "groups",
        groups=_list(
            _object(
                "name rules",
                name=_TEXT,
                rules=_list(
                    _object(
                        "expr alert",
                        alert=_TEXT,
                        expr=_TEXT,
                        labels=_TEXTS,
                        annotations=_TEXTS,
                        **{"for": _DURATION},
                    )
                ),
            )
        ),
    ),
}


def complaints(resource: Resource) -> Iterator[str]:
    """Yields what does not fit the schema of its kind."""
    for error in Draft202012Validator(SCHEMAS[resource["kind"]]).iter_errors(resource["spec"]):
        yield f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}"
