"""What a sweep tells a monitoring system: which metrics there are, and their values.

Every metric is labelled with the study and its experiment; what other labels a metric has, takes
few values, since each combination is a time series of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from orchestrator.core.events import Event, SweepEnded, SweepStarted, TrialEnded, TrialStarted
from orchestrator.core.objective import record_of, score, throughput
from orchestrator.core.state import SweepState
from orchestrator.core.validation import next_validation
from search_spaces.trial import OutOfMemory

LABELS = ("study", "experiment")  # of every metric
ValidationState = Literal["off", "open", "validated", "failed"]
VALIDATION_STATES: tuple[ValidationState, ...] = ("off", "open", "validated", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """What one driver's groups did; what earlier drivers of the study ran is left out."""

    groups: int = 1  # trials that can be under way at the same time
    first_at: float | None = None  # when the first trial was handed out
    ran_seconds: float = 0.0  # of trials that ended, on workers that were ready
    ended_at: float | None = None  # the sweep


def utilization(meter: Utilization, event: Event, before: SweepState) -> Utilization:
    """The meter after an event.

    Args:
        meter: As it was.
        event: What happened.
        before: The state until then, in which a trial that ends is still under way.
    """
    match event:
        case SweepStarted():
            return Utilization(groups=event.groups)
        case TrialStarted() if meter.first_at is None:
            return replace(meter, first_at=event.at)
        case TrialEnded():
            return replace(meter, ran_seconds=meter.ran_seconds + _ran_seconds(event, before))
        case SweepEnded():
            return replace(meter, ended_at=event.at)
        case _:
            return meter


def busy_share(meter: Utilization, state: SweepState, now: float) -> float | None:
    """The share of the groups' time in which they ran trials, 0 to 1; None until one has ended.

    The time runs from when the first trial was handed out until `now`, or the sweep's end, and is
    that of all groups together. A trial runs from when its workers were ready until it ended: the
    wait before that counts as idle, and so does the time between trials. Those under way are left
    out until they end, since nobody knows yet how long they waited. One that never told when it
    began, as on a node that was lost, counts as idle.

    Args:
        meter: After the last event.
        state: After the last event.
        now: Seconds since the epoch.
    """
    if meter.first_at is None:
        return None
    until = now if meter.ended_at is None else meter.ended_at
    under_way = sum(until - trial.at for trial in state.running)
    known = meter.groups * (until - meter.first_at) - under_way
    if known <= 0 or not state.records[state.resumed :]:
        return None
    return min(meter.ran_seconds / known, 1.0)


def _ran_seconds(event: TrialEnded, before: SweepState) -> float:
    number = event.record.number
    handed = next((trial for trial in before.running if trial.number == number), None)
    if handed is None or event.waited_seconds is None:
        return 0.0
    return max(event.record.ended_at - handed.at - event.waited_seconds, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric by its name, without what an exporter puts before or behind it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()  # beside `LABELS`
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value: what a counter grows by, a histogram takes in, or a gauge shows from now on."""

    metric: Metric
    value: float
    labels: tuple[tuple[str, str], ...] = field(default=())


TRIALS = Metric(
    name="plimsoll_trials",
    kind="counter",
    help="Trials that ended under this driver, by outcome; validations are left out",
    labels=("outcome",),
)
ASK_SECONDS = Metric(
    name="plimsoll_ask_seconds",
    kind="histogram",
    help="Seconds that choosing a plan took, forecasts and search together",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
WAIT_SECONDS = Metric(
    name="plimsoll_wait_seconds",
    kind="histogram",
    help="Seconds from when a trial was handed out until its workers were ready for it",
    buckets=(0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
RUNNING = Metric(
    name="plimsoll_trials_running", kind="gauge", help="Trials and validations that are under way"
)
GROUPS = Metric(
    name="plimsoll_groups", kind="gauge", help="Trials that can be under way at the same time"
)
BUSY_SHARE = Metric(
    name="plimsoll_busy_share",
    kind="gauge",
    help="Share of the groups' time in which they ran trials, since the first was handed out",
)
BEST_RATE = Metric(
    name="plimsoll_best_samples_per_second",
    kind="gauge",
    help="Samples per second of the plan that is best by the sweep's objective",
)
BASELINE_RATE = Metric(
    name="plimsoll_baseline_samples_per_second",
    kind="gauge",
    help="Samples per second of the plan that one would start with",
)
BEST_OBJECTIVE = Metric(
    name="plimsoll_best_objective",
    kind="gauge",
    help="The best plan's value of the sweep's objective",
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
    help="1 for the state that the validation of the best plan is in, 0 for the others",
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


def happened(event: Event) -> Iterator[Reading]:
    """What an event adds to counters and histograms."""
    match event:
        case TrialStarted(ask_seconds=float(taken)):
            yield Reading(metric=ASK_SECONDS, value=taken)
        case TrialEnded(record=record, waited_seconds=waited):
            if not record.validation:
                yield Reading(metric=TRIALS, value=1, labels=(("outcome", record.outcome.kind),))
            if waited is not None:
                yield Reading(metric=WAIT_SECONDS, value=waited)
        case _:
            return


def current(meter: Utilization, state: SweepState, now: float) -> Iterator[Reading]:
    """What changes from moment to moment; costs little."""
    yield Reading(metric=RUNNING, value=len(state.running))
    yield Reading(metric=GROUPS, value=meter.groups)
    if (share := busy_share(meter, state, now)) is not None:
        yield Reading(metric=BUSY_SHARE, value=share)


def standing(state: SweepState) -> Iterator[Reading]:
    """What changes when a trial or a validation ends; goes through all records.

    What is not known yet is left out: nothing was measured, or no plan is feasible.
    """
    records = state.records
    if records:
        ran_out = sum(isinstance(record.outcome, OutOfMemory) for record in records)
        yield Reading(metric=OUT_OF_MEMORY_SHARE, value=ran_out / len(records))
    baseline = record_of(records, state.space.baseline)
    if baseline is not None and throughput(baseline):
        yield Reading(metric=BASELINE_RATE, value=throughput(baseline))
    if (best := state.best) is not None:
        goal = state.goal
        yield Reading(metric=BEST_RATE, value=throughput(best))
        reached = (("metric", goal.metric),)
        yield Reading(metric=BEST_OBJECTIVE, value=score(best, goal), labels=reached)
    ours = validation_state(state)
    for each in VALIDATION_STATES:
        yield Reading(metric=VALIDATION_STATE, value=float(each == ours), labels=(("state", each),))


def validation_state(state: SweepState) -> ValidationState:
    """How the best plan's validation stands.

    `off` where the specification wants none, `failed` where as many have failed as may be tried,
    or no plan is left; `open` while one is still to come.
    """
    if not state.spec.validation.enabled:
        return "off"
    if state.validated is not None:
        return "validated"
    after = next_validation(state.records, state.validations, state.space.baseline, state.spec)
    return "failed" if after is None and state.failed_validations else "open"
