"""The Grafana dashboard: every expression is PromQL over metrics and labels that there are.

That these are what a cluster exports is shown by tests/orchestrator/cluster/test_metrics.py.
"""

from __future__ import annotations

import itertools
import re

import pytest

from orchestrator.tracking.metrics import LABELS, METRICS, VALIDATION_STATES
from tests.dashboard import DASHBOARD, expressions, names_and_labels, queries

EXPORTED = {
    f"ray_{metric.name}{suffix}": {*LABELS, *metric.labels, *extra}
    for metric in METRICS
    for suffix, extra in {
        "counter": [("_total", ())],
        "gauge": [("", ())],
        "histogram": [("_bucket", ("le",)), ("_sum", ()), ("_count", ())],
    }[metric.kind]
}


@pytest.mark.parametrize("expression", expressions())
def test_it_asks_for_metrics_and_labels_that_there_are(expression: str) -> None:
    found = list(names_and_labels(expression))

    assert found
    for name, labels in found:
        assert name in EXPORTED
        assert labels <= EXPORTED[name]


def test_it_shows_every_metric() -> None:
    shown = {name for text in expressions() for name, _ in names_and_labels(text)}
    of = {
        metric.name: any(name.startswith(f"ray_{metric.name}") for name in shown)
        for metric in METRICS
    }

    assert all(of.values()), of


@pytest.mark.parametrize("query", queries())
def test_variables_take_their_values_from_labels_that_there_are(query: str) -> None:
    match = re.fullmatch(r"label_values\((?P<of>.+), (?P<label>\w+)\)", query)
    assert match is not None
    for name, labels in names_and_labels(match["of"]):
        assert labels | {match["label"]} <= EXPORTED[name]


def test_panels_follow_the_variables_and_the_chosen_source() -> None:
    variables = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "experiment", "study"]
    assert DASHBOARD["schemaVersion"] >= 38  # Grafana 10.0

    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            selectors = re.findall(r"\{(.*?)\}", target["expr"])
            assert selectors
            for selector in selectors:
                assert 'study=~"$study"' in selector
                assert 'experiment=~"$experiment"' in selector


def test_legends_name_labels_that_the_query_keeps() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            kept = set(re.findall(r"by \(([\w, ]+)\)", target["expr"])[0].split(", "))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept


def test_panels_have_numbers_of_their_own_and_lie_beside_each_other() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x, y in itertools.product(
            range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        )
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24  # Grafana's columns


def test_the_validations_panel_says_which_states_there_are() -> None:
    panel = next(panel for panel in DASHBOARD["panels"] if panel["title"] == "Validation")

    assert all(state in panel["description"] for state in VALIDATION_STATES)
