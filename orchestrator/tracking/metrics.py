"""Metrics of a sweep for a monitoring system, and their values.

Every metric is labelled with the study and its experiment. Other labels have few values, because
each combination is a time series of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.core.events import Event, TrialEnded, TrialStarted
from orchestrator.core.objective import record_of, score, throughput
from orchestrator.core.state import SweepState, ValidationState, validation_state
from search_spaces.trial import OutOfMemory

LABELS = ("study", "experiment")  # of every metric
VALIDATION_STATES: tuple[ValidationState, ...] = ("off", "open", "validated", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric; its name has no prefix or suffix of an exporter."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()  # in addition to `LABELS`
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value of a metric: an increment, a sample of a histogram, or the new value of a gauge."""

    metric: Metric
    value: float
    labels: tuple[tuple[str, str], ...] = field(default=())


TRIALS = Metric(
    name="plimsoll_trials",
    kind="counter",
    help="Trials that ended under this driver, by outcome; without validations",
    labels=("outcome",),
)
ASK_SECONDS = Metric(
    name="plimsoll_ask_seconds",
    kind="histogram",
    help="Seconds to choose a plan, forecasts and search together",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
WAIT_SECONDS = Metric(
    name="plimsoll_wait_seconds",
    kind="histogram",
    help="Seconds from the start of a trial until its workers were ready",
    buckets=(0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
RUNNING = Metric(
    name="plimsoll_trials_running", kind="gauge", help="Trials and validations that are running"
)
GROUPS = Metric(name="plimsoll_groups", kind="gauge", help="Trials that can run at the same time")
BEST_RATE = Metric(
    name="plimsoll_best_samples_per_second",
    kind="gauge",
    help="Samples per second of the best plan by the sweep's objective",
)
BASELINE_RATE = Metric(
    name="plimsoll_baseline_samples_per_second",
    kind="gauge",
    help="Samples per second of the baseline",
)
BEST_OBJECTIVE = Metric(
    name="plimsoll_best_objective",
    kind="gauge",
    help="Value of the sweep's objective for the best plan",
    labels=("metric",),
)
OUT_OF_MEMORY_SHARE = Metric(
    name="plimsoll_out_of_memory_share",
    kind="gauge",
    help="Share of the study's trials that ran out of memory",
)
VALIDATION_STATE = Metric(
    name="plimsoll_validation_state",
    kind="gauge",
    help="1 for the current state of the best plan's validation, 0 for the others",
    labels=("state",),
)
METRICS = (
    TRIALS,
    ASK_SECONDS,
    WAIT_SECONDS,
    RUNNING,
    GROUPS,
    BEST_RATE,
    BASELINE_RATE,
    BEST_OBJECTIVE,
    OUT_OF_MEMORY_SHARE,
    VALIDATION_STATE,
)


def event_readings(event: Event) -> Iterator[Reading]:
    """Yields what an event adds to counters and histograms."""
    match event:
        case TrialStarted(ask_seconds=float(seconds)):
            yield Reading(metric=ASK_SECONDS, value=seconds)
        case TrialEnded(record=record, waited_seconds=waited):
            if not record.validation:
                yield Reading(metric=TRIALS, value=1, labels=(("outcome", record.outcome.kind),))
            if waited is not None:
                yield Reading(metric=WAIT_SECONDS, value=waited)
        case _:
            return


def live_readings(groups: int, state: SweepState) -> Iterator[Reading]:
    """Yields the gauges that change all the time; cheap."""
    yield Reading(metric=RUNNING, value=len(state.running))
    yield Reading(metric=GROUPS, value=groups)


def study_readings(state: SweepState) -> Iterator[Reading]:
    """Yields the gauges that change when a trial or a validation ends; reads all records.

    Values that are not known yet are left out, such as those of the best plan while no plan is
    feasible.
    """
    records = state.records
    if records:
        ran_out = sum(isinstance(record.outcome, OutOfMemory) for record in records)
        yield Reading(metric=OUT_OF_MEMORY_SHARE, value=ran_out / len(records))
    baseline = record_of(records, state.space.baseline)
    if baseline is not None and throughput(baseline):
        yield Reading(metric=BASELINE_RATE, value=throughput(baseline))
    if (best := state.best) is not None:
        objective = state.objective
        yield Reading(metric=BEST_RATE, value=throughput(best))
        labels = (("metric", objective.metric),)
        yield Reading(metric=BEST_OBJECTIVE, value=score(best, objective), labels=labels)
    current_state = validation_state(state)
    for name in VALIDATION_STATES:
        value = float(name == current_state)
        yield Reading(metric=VALIDATION_STATE, value=value, labels=(("state", name),))
