"""Metrics of a sweep for a monitoring system, and their values.

Every metric is labelled with the study and its experiment. Other labels have few values, because
each combination is a time series of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from orchestrator.core.events import Event, SweepEnded, SweepStarted, TrialEnded, TrialStarted
from orchestrator.core.objective import record_of, score, throughput
from orchestrator.core.state import SweepState, ValidationState, validation_state
from search_spaces.trial import OutOfMemory

LABELS = ("study", "experiment")  # of every metric
VALIDATION_STATES: tuple[ValidationState, ...] = ("off", "open", "validated", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """Busy time of the worker groups of one driver, without earlier drivers of the study."""

    groups: int = 1  # trials that can run at the same time
    first_at: float | None = None  # start of the first trial, seconds since the epoch
    ran_seconds: float = 0.0  # total of ended trials, on ready workers
    ended_at: float | None = None  # end of the sweep, seconds since the epoch


def utilization(meter: GroupUse, event: Event, before: SweepState) -> GroupUse:
    """Returns the meter after an event.

    Args:
        meter: The meter before the event.
        event: The event.
        before: The state before the event, in which a trial that ends is still running.
    """
    match event:
        case SweepStarted():
            return GroupUse(groups=event.groups)
        case TrialStarted() if meter.first_at is None:
            return replace(meter, first_at=event.at)
        case TrialEnded():
            return replace(meter, ran_seconds=meter.ran_seconds + _ran_seconds(event, before))
        case SweepEnded():
            return replace(meter, ended_at=event.at)
        case _:
            return meter


def busy_share(meter: GroupUse, state: SweepState, now: float) -> float | None:
    """Returns the share of time in which the groups ran trials; None until a trial has ended.

    The total time is that of all groups, from the start of the first trial until `now` or the end
    of the sweep. A trial is busy from when its workers are ready until it ends; waiting for
    workers and pauses between trials count as idle. Running trials are left out until they end,
    because their wait is not known yet. A trial that never reported its begin, for example on a
    lost node, counts as idle.

    Args:
        meter: The meter after the last event.
        state: The state after the last event.
        now: The time, in seconds since the epoch.

    Returns:
        A share from 0 to 1.
    """
    if meter.first_at is None:
        return None
    until = now if meter.ended_at is None else meter.ended_at
    running_seconds = sum(until - trial.at for trial in state.running)
    total_seconds = meter.groups * (until - meter.first_at) - running_seconds
    if total_seconds <= 0 or not state.records[state.resumed :]:
        return None
    return min(meter.ran_seconds / total_seconds, 1.0)


def _ran_seconds(event: TrialEnded, before: SweepState) -> float:
    number = event.record.number
    started = next((trial for trial in before.running if trial.number == number), None)
    if started is None or event.waited_seconds is None:
        return 0.0
    return max(event.record.ended_at - started.at - event.waited_seconds, 0.0)


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
BUSY_SHARE = Metric(
    name="plimsoll_busy_share",
    kind="gauge",
    help="Share of time in which worker groups ran trials, since the first trial started",
)
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
    BUSY_SHARE,
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


def live_readings(meter: GroupUse, state: SweepState, now: float) -> Iterator[Reading]:
    """Yields the gauges that change all the time; cheap."""
    yield Reading(metric=RUNNING, value=len(state.running))
    yield Reading(metric=GROUPS, value=meter.groups)
    if (share := busy_share(meter, state, now)) is not None:
        yield Reading(metric=BUSY_SHARE, value=share)


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
