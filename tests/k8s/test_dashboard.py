"""The Grafana dashboard and the alerts: each expression asks for metrics and labels that exist.

That these are what a cluster exports is shown by tests/orchestrator/cluster/test_metrics.py.
"""

import re
from pathlib import Path

import ray

from orchestrator.tracking.metrics import LABELS, metrics
from tests.dashboard import DASHBOARD, expressions, names_and_labels, queries
from tests.k8s.rendering import rendered

SUFFIXES = {
    "counter": {"_total": ()},
    "gauge": {"": ()},
    "histogram": {"_bucket": ("le",), "_sum": (), "_count": ()},
}
EXPORTED = {
    f"ray_{metric.name}{suffix}": {*LABELS, *metric.labels, *extra}
    for metric in metrics()
    for suffix, extra in SUFFIXES[metric.kind].items()
}


def test_panels_and_variables_ask_for_metrics_and_labels_that_exist() -> None:
    asked = [pair for expression in expressions() for pair in names_and_labels(expression)]
    for query in queries():
        match = re.fullmatch(r"label_values\((?P<of>.+), (?P<label>\w+)\)", query)
        assert match is not None
        asked += [
            (name, {*labels, match["label"]}) for name, labels in names_and_labels(match["of"])
        ]

    assert [
        (name, labels) for name, labels in asked if not labels <= EXPORTED.get(name, set())
    ] == []
    for metric in metrics():
        assert any(name.startswith(f"ray_{metric.name}") for name, _ in asked), metric.name


def test_panels_follow_the_variables_and_the_chosen_source() -> None:
    variables = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "experiment", "study"]

    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            selectors = re.findall(r"\{(.*?)\}", target["expr"])
            assert selectors
            for selector in selectors:
                assert 'study=~"$study"' in selector
                assert 'experiment=~"$experiment"' in selector


def test_alerts_ask_for_metrics_that_ray_has() -> None:
    agent = Path(ray.__file__).parent / "dashboard/modules/reporter/reporter_agent.py"
    known = set(re.findall(r'"(\w+)": Gauge\(', agent.read_text(encoding="utf-8")))
    rules = next(one for one in rendered("cloud") if one["kind"] == "PrometheusRule")
    alerts = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    asked = re.findall(r"\bray_(\w+)", " ".join(alerts))

    assert asked
    assert {*asked} <= known
