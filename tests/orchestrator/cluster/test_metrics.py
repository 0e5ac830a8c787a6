"""Metrics of the eventful sweep, scraped as Prometheus would, compared with its study."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from statistics import median

import pytest

from orchestrator.tracking.events import Line
from orchestrator.tracking.metrics import METRICS
from search_spaces.trial import Measured
from tests.dashboard import expressions, names_and_labels
from tests.orchestrator.cluster.conftest import MICRO_BATCHES, OURS, Eventful


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


def seconds(line: Line) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


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


def test_latencies_are_those_of_the_events(eventful: Eventful) -> None:
    starts = [line for line in eventful.events if line["event"] == "trial_started"]
    asks = [line["ask_seconds"] for line in starts if line["ask_seconds"] is not None]
    waits = [
        line["waited_seconds"] for line in ends(eventful) if line["waited_seconds"] is not None
    ]
    assert len(asks) == len(MICRO_BATCHES) - 1  # the first plan is nobody's choice
    assert len(waits) >= len(MICRO_BATCHES) + len(eventful.validations)

    for name, values in (("ask_seconds", asks), ("wait_seconds", waits)):
        assert eventful.value(f"{name}_count") == len(values)
        bounds = next(metric.buckets for metric in METRICS if metric.name == f"plimsoll_{name}")
        for bound in bounds:
            below = sum(value <= bound for value in values)
            assert eventful.value(f"{name}_bucket", le=str(bound)) == below

    # workers are started for the first trial, after a death or a deadline, and for each validation
    replaced, cold, warm = True, [], []
    for line in ends(eventful):
        if line["waited_seconds"] is not None:
            (cold if replaced or line["validation"] else warm).append(line["waited_seconds"])
        replaced = line["outcome"] in ("cancelled", "timed_out") or "died" in line["detail"]
    assert len(cold) >= 1 + len(eventful.validations)
    assert min(cold) > 10 * median(warm)


def test_the_busy_share_is_that_of_trials_and_validations(eventful: Eventful) -> None:
    starts = [line for line in eventful.events if line["event"] == "trial_started"]
    # when the workers had ended, which the driver hears of later
    records = [*eventful.trials, *eventful.checks, *eventful.validations]
    ended = {(record.number, record.validation): record.ended_at for record in records}
    ran = 0.0
    ends_by_trial = {(end["trial"], end["validation"]): end for end in ends(eventful)}
    assert len(ends_by_trial) == len(starts)
    for start in starts:
        end = ends_by_trial[start["trial"], start["validation"]]
        if end["waited_seconds"] is not None:  # else nobody knows when it began
            at = ended.get((end["trial"], end["validation"]), seconds(end))
            ran += at - seconds(start) - end["waited_seconds"]

    over = seconds(eventful.events[-1]) - seconds(starts[0])
    assert eventful.value("busy_share") == pytest.approx(ran / over, rel=0.1)


def test_gauges_stay_while_nothing_happens(eventful: Eventful) -> None:
    """Ray's agent forgets gauges that are not set again, and workers take longer to start."""
    there = [any(f.name == f"{OURS}groups" for f in scrape) for scrape in eventful.scrapes]
    first = there.index(True)
    last = len(there) - there[::-1].index(True)

    assert last - first > 8
    assert sum(there[first:last]) / (last - first) > 0.9


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
