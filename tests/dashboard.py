"""The Grafana dashboard, and what its expressions ask for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql

_FILE = Path(__file__).parents[1] / "k8s/components/monitoring/grafana/plimsoll.json"
DASHBOARD: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))


def expressions() -> list[str]:
    """Every panel's PromQL."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def queries() -> list[str]:
    """Returns the queries of the variables' values."""
    listed = DASHBOARD["templating"]["list"]
    return [each["query"]["query"] for each in listed if each["type"] == "query"]


def names_and_labels(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels that it is asked to have.

    Raises:
        ValueError: If it is no PromQL.
    """
    # Grafana puts a duration in its place
    yield from _within(promql.parse(expression.replace("$__rate_interval", "1m")), set())


def _within(node: Any, grouped: set[str]) -> Iterator[tuple[str, set[str]]]:
    match node:
        case promql.VectorSelector():
            yield node.name, grouped | {each.name for each in node.matchers.matchers}
        case promql.MatrixSelector():
            yield from _within(node.vector_selector, grouped)
        case promql.AggregateExpr():
            labels = set(node.modifier.labels) if node.modifier else set()
            yield from _within(node.expr, grouped | labels)
        case promql.BinaryExpr():
            yield from _within(node.lhs, grouped)
            yield from _within(node.rhs, grouped)
        case promql.Call():
            for argument in node.args:
                yield from _within(argument, grouped)
        case promql.ParenExpr():
            yield from _within(node.expr, grouped)
        case promql.NumberLiteral():
            return
        case _:
            raise ValueError(f"{type(node).__name__} is not known here")
