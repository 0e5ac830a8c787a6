"""Metrics of the eventful sweep, scraped as Prometheus would, compared with its study."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from orchestrator.tracking.events import Line
from orchestrator.tracking.metrics import METRICS
from search_spaces.trial import Measured
from tests.dashboard import expressions, names_and_labels
from tests.orchestrator.cluster.conftest import OURS, Eventful


def rate(eventful: Eventful, rows: int) -> float:
    """Returns the geometric mean over the plan's trial and its validation, if there is one."""
    measured = [
        one.outcome.samples_per_second.value
        for one in (eventful.by_rows[rows], *eventful.validations)
        if one.plan.micro_batch == rows and isinstance(one.outcome, Measured)
    ]
    return math.prod(measured) ** (1 / len(measured))


def ends(eventful: Eventful) -> list[Line]:
    return [line for line in eventful.events if line["event"] == "trial_ended"]


def test_values_are_those_of_the_study(eventful: Eventful) -> None:
    ended_well = (*eventful.trials, *eventful.checks)
    kinds = Counter(record.outcome.kind for record in ended_well)
    ended = Counter(line["outcome"] for line in ends(eventful) if not line["validation"])
    assert ended == kinds + Counter(cancelled=1)  # cut short by a worker's death, and run again
    assert ended["out_of_memory"] == 1
    best = eventful.validations[-1].plan.micro_batch

    assert {kind: eventful.value("trials_total", outcome=kind) for kind in ended} == ended
    assert eventful.value("best_samples_per_second") == pytest.approx(rate(eventful, best))
    assert eventful.value("baseline_samples_per_second") == pytest.approx(rate(eventful, 1))
    assert eventful.value("best_objective", metric="samples_per_second") == pytest.approx(
        rate(eventful, best)
    )
    assert eventful.value("out_of_memory_share") == pytest.approx(1 / sum(ended.values()))
    assert eventful.value("trials_running") == 0
    assert eventful.value("groups") == 1
    assert eventful.value("validation_state", state="validated") == 1
    assert eventful.value("validation_state", state="open") == 0


def test_what_the_dashboard_asks_for_is_there(eventful: Eventful) -> None:
    exported = {
        sample.name: set(sample.labels)
        for scrape in eventful.scrapes
        for family in scrape
        for sample in family.samples
    }

    for expression in expressions():
        for name, labels in names_and_labels(expression):
            assert labels <= exported.get(name, set()), f"{name} in {expression}"


def test_what_is_exported_is_described(eventful: Eventful) -> None:
    families = {family.name: family for scrape in eventful.scrapes for family in scrape}

    assert {f"{OURS.removesuffix('plimsoll_')}{metric.name}" for metric in METRICS} == set(families)
    for metric in METRICS:
        family = families[f"ray_{metric.name}"]
        assert (family.documentation, family.type) == (metric.help, metric.kind)
