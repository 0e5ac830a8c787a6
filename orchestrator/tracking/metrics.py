"""Metrics of a sweep for a monitoring system, and their values.

Every metric is labelled with the study and its experiment. Other labels have few values, because
each combination is a time series of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from pydantic import TypeAdapter

from orchestrator.core.events import Event, TrialEnded, TrialStarted
from orchestrator.core.objective import record_of, score, throughput
from orchestrator.core.state import SweepState, ValidationState, validation_state
from search_spaces.safety.files import packaged_table
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

    metric: str
    value: float
    labels: tuple[tuple[str, str], ...] = field(default=())


@cache
def metrics() -> tuple[Metric, ...]:
    """Returns all metrics."""
    table = packaged_table(__package__, "metrics.yaml")
    return TypeAdapter(tuple[Metric, ...]).validate_python(table)


def event_readings(event: Event) -> Iterator[Reading]:
    """Yields what an event adds to counters and histograms."""
    match event:
        case TrialStarted(ask_seconds=float(seconds)):
            yield Reading(metric="plimsoll_ask_seconds", value=seconds)
        case TrialEnded(record=record, waited_seconds=waited):
            if not record.validation:
                yield Reading(
                    metric="plimsoll_trials", value=1, labels=(("outcome", record.outcome.kind),)
                )
            if waited is not None:
                yield Reading(metric="plimsoll_wait_seconds", value=waited)
        case _:
            return


def gauge_readings(groups: int, state: SweepState) -> Iterator[Reading]:
    """Yields all gauges of a sweep, in which this number of trials can run at the same time.

    Values that are not known yet are left out, such as those of the best plan while no plan is
    feasible.
    """
    yield Reading(metric="plimsoll_trials_running", value=len(state.running))
    yield Reading(metric="plimsoll_groups", value=groups)
    records = state.records
    if records:
        ran_out = sum(isinstance(record.outcome, OutOfMemory) for record in records)
        yield Reading(metric="plimsoll_out_of_memory_share", value=ran_out / len(records))
    baseline = record_of(records, state.space.baseline)
    if baseline is not None and throughput(baseline):
        yield Reading(metric="plimsoll_baseline_samples_per_second", value=throughput(baseline))
    if (best := state.best) is not None:
        objective = state.objective
        yield Reading(metric="plimsoll_best_samples_per_second", value=throughput(best))
        labels = (("metric", objective.metric),)
        yield Reading(metric="plimsoll_best_objective", value=score(best, objective), labels=labels)
    current_state = validation_state(state)
    for name in VALIDATION_STATES:
        value = float(name == current_state)
        yield Reading(metric="plimsoll_validation_state", value=value, labels=(("state", name),))
