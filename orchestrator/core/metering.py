"""How busy a sweep keeps its groups: counted from its events, beside its state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.core.events import Event, SweepEnded, SweepStarted, TrialEnded, TrialStarted
from orchestrator.core.state import SweepState


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """What one driver's groups did; what earlier drivers of the study ran is left out."""

    groups: int = 1  # trials that can be under way at the same time
    first_at: float | None = None  # when the first trial was handed out
    ran_seconds: float = 0.0  # of trials that ended, on workers that were ready
    ended_at: float | None = None  # the sweep


def metered(meter: Meter, event: Event, before: SweepState) -> Meter:
    """The meter after an event.

    Args:
        meter: As it was.
        event: What happened.
        before: The state until then, in which a trial that ends is still under way.
    """
    match event:
        case SweepStarted():
            return Meter(groups=event.groups)
        case TrialStarted() if meter.first_at is None:
            return replace(meter, first_at=event.at)
        case TrialEnded():
            return replace(meter, ran_seconds=meter.ran_seconds + _ran_seconds(event, before))
        case SweepEnded():
            return replace(meter, ended_at=event.at)
        case _:
            return meter


def busy_share(meter: Meter, state: SweepState, now: float) -> float | None:
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
