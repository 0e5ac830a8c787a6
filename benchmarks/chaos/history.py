"""Made-up histories of sweeps as they should go, and two bugs that may be planted in them.

A history has the plans of a real campaign, as many faults, and kinds as often as they struck there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.chaos.judge import ENDS, History, Injected, Line, judge, struck
from benchmarks.naps import nap_of
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.records import Record
from search_spaces.plan import Plan
from search_spaces.trial import (
    Crashed,
    CrashKind,
    Diverged,
    Estimate,
    Measured,
    Outcome,
    OutOfMemory,
    TimedOut,
)

PLANS = 6
_ORDERS = {
    "loss_is_nan": "nan",
    "past_the_budget": "oom",
    "memory_hog": "hog",
    "endless_loop": "loop",
    "model_raises": "raise",
}
_DRIVER = ("driver_killed", "driver_ended")
_HUNG = ("rank_stopped", "actor_stopped")
_SPURIOUS: tuple[CrashKind, ...] = ("worker_died", "exception", "driver_lost", "collective")


@dataclass
class _Sweep:
    """One sweep: plans run one after the other, faults strike attempts by turns."""

    draw: random.Random
    faults: dict[int, list[str]]  # by the turn of the attempt
    events: list[dict[str, Any]] = field(default_factory=list)
    journal: list[Line] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    injected: list[tuple[str, int, int]] = field(default_factory=list)
    orders: list[Injected] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)  # that end what the next attempt is given to

    def run(self) -> History:
        self._say("sweep_started")
        number = 0
        for size in range(PLANS):
            plan, deaths = _plan(2**size), 0
            while True:
                outcome = self._attempt(number, plan, deaths)
                number += 1
                if outcome is not None:
                    break
                deaths += 1
        faults = [struck(self.events, *one) for one in self.injected]
        return History(
            events=self.events,
            journal=self.journal,
            records=self.records,
            injected=[*faults, *self.orders],
        )

    def _attempt(self, number: int, plan: Plan, deaths: int) -> Outcome | None:
        """Runs an attempt; returns None if it has to run once more."""
        kinds, self.carried = self.carried, []
        self._say("trial_started", trial=number, plan_key=plan.key)
        for kind in self.faults.pop(number, []):
            if kind in _ORDERS:
                self.orders.append(Injected(kind=_ORDERS[kind], attempts=(number,)))
                kinds.append(_ORDERS[kind])
                continue
            self.injected.append((kind, len(self.events), len(self.events)))
            late = kind in ENDS and kind not in _DRIVER and self.draw.random() < 0.2
            (self.carried if late else kinds).append(kind)
        rate = self.draw.uniform(1e4, 4e4)
        finished = _measured(rate)
        order = next((kind for kind in kinds if kind in _ORDERS.values()), None)
        end = next((kind for kind in kinds if kind in ENDS), None)
        if order is None and (end is None or self.draw.random() < 0.3):  # before what ends it
            self.journal.append(
                Line(number=number, plan=plan.key, validation=False, samples_per_second=rate)
            )
        if end is not None and self.draw.random() < 0.7:
            return self._interrupted(number, plan, end, deaths)
        if order is not None:
            return self._ended(number, plan, _of_order(order))
        if number not in {line.number for line in self.journal}:
            return self._interrupted(number, plan, str(end), deaths)
        return self._ended(number, plan, finished)

    def _interrupted(self, number: int, plan: Plan, kind: str, deaths: int) -> Outcome | None:
        if kind in _HUNG and self.draw.random() < 0.5:
            return self._ended(number, plan, TimedOut(deadline_seconds=25.0, detail="silent"))
        if deaths:
            return self._ended(number, plan, _crashed("worker_died"))
        if kind != "driver_killed":
            self._say("trial_ended", trial=number, plan_key=plan.key, outcome="cancelled")
        if kind in _DRIVER:
            self._say("sweep_started")
        return None

    def _ended(self, number: int, plan: Plan, outcome: Outcome) -> Outcome:
        self.records.append(_record(number, plan, outcome))
        self._say("trial_ended", trial=number, plan_key=plan.key, outcome=outcome.kind)
        return outcome

    def _say(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


def history(seed: int, often: Mapping[str, int], faults: int) -> History:
    """Makes the history of a sweep without a bug.

    Args:
        seed: Draws everything.
        often: How often each kind of fault struck in a campaign.
        faults: How many strike.
    """
    draw = random.Random(seed)
    kinds = draw.choices(sorted(often), [often[kind] for kind in sorted(often)], k=faults)
    turns: dict[int, list[str]] = {}
    for kind in kinds:
        turns.setdefault(draw.randrange(PLANS + 2), []).append(kind)
    return _Sweep(draw, turns).run()


def with_dropped_record(sound: History, draw: random.Random) -> History:
    """Drops one record; the driver has said that it has the result, or has forgotten it as well."""
    victim = draw.choice(list(sound.records))
    events = sound.events
    if draw.random() < 0.5 and isinstance(victim.outcome, Measured):
        events = [event for event in events if not _ends(event, victim.number)]
    kept = [one for one in sound.records if one is not victim]
    return replace(sound, events=events, records=kept)


def _ends(event: Mapping[str, Any], number: int) -> bool:
    return (event["event"], event.get("trial")) == ("trial_ended", number)


def with_spurious_crash(sound: History, draw: random.Random) -> History | None:
    """Says and stores that one healthy plan has crashed; None if none was measured."""
    healthy = [one for one in sound.records if isinstance(one.outcome, Measured)]
    if not healthy:
        return None
    victim = draw.choice(healthy)
    crashed = replace(victim, outcome=_crashed(draw.choice(_SPURIOUS)))
    return replace(
        sound,
        events=[_as_crashed(event, victim.number) for event in sound.events],
        records=[crashed if one is victim else one for one in sound.records],
    )


def _as_crashed(event: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    return {**event, "outcome": "crashed"} if _ends(event, number) else event


def score(often: Mapping[str, int], histories: int, faults: int, seed: int) -> dict[str, Any]:
    """Returns how many sound histories, dropped records and spurious crashes the judge reports."""
    counts = dict.fromkeys(("sound", "dropped", "spurious"), 0)
    tried, number = dict(counts), seed
    missed: list[int] = []
    while min(tried.values()) < histories:
        number += 1
        draw, sound = random.Random(number), history(number, often, faults)
        cases = {
            "sound": sound,
            "dropped": with_dropped_record(sound, draw),
            "spurious": with_spurious_crash(sound, draw),
        }
        for name, case in cases.items():
            if case is None or tried[name] >= histories:
                continue
            tried[name] += 1
            counts[name] += (reported := not judge(case).clean)
            if reported == (name == "sound"):
                missed.append(number)
    return {
        "histories": tried,
        "reported": counts,
        "reported_share": {name: round(counts[name] / tried[name], 4) for name in counts},
        "seeds_judged_wrongly": missed,
    }


def _plan(micro_batch: int) -> Plan:
    return Plan(
        data=2,
        zero_stage=0,
        micro_batch=micro_batch,
        accumulation=32 // micro_batch,
        batching="padded",
        checkpoint_ratio=0.0,
        attention="sdpa",
        precision="fp32",
    )


def _record(number: int, plan: Plan, outcome: Outcome) -> Record:
    return Record(
        number=number,
        plan=plan,
        outcome=outcome,
        reason=IsBaseline(),
        started_at=float(number),
        ended_at=number + 1.0,
        fingerprint=None,
    )


def _measured(rate: float) -> Measured:
    template = nap_of(_plan(1)).outcome
    assert isinstance(template, Measured)
    return replace(template, samples_per_second=Estimate(value=rate, low=rate, high=rate))


def _crashed(cause: CrashKind) -> Crashed:
    return Crashed(cause=cause, rank=None, phase="running the trial", detail="it ended")


def _of_order(order: str) -> Outcome:
    match order:
        case "nan":
            return Diverged(step=1, loss="nan", costs=None)
        case "loop":
            return TimedOut(deadline_seconds=25.0, detail="no end")
        case "raise":
            return _crashed("exception")
    return OutOfMemory(
        where="host", wanted_bytes=None, limit_bytes=None, rank=0, phase="", detail="", costs=None
    )
