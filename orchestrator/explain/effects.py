"""What separates two plans of a study, knob by knob, and what each knob is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.explain.context import ForecastContext, without_accelerator
from orchestrator.report.sweep_tables import quotient
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable, differing_knobs, neighbours
from search_spaces.trial import Estimate, Measured, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A knob in which two plans differ; what follows from another knob is none."""

    knob: str
    ours: Any
    theirs: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """What a knob's value is worth: the plan over what it is with only this knob changed.

    `ratio` is the plan's speed over the other's, `peak_bytes` what the plan's peak has more;
    `trial` is that of the other plan where it was measured, None where both are forecast, or
    nothing is known at all, since no legal plan differs so.
    """

    change: Change
    ratio: Estimate | None
    peak_bytes: float | None
    trial: int | None
    told: str = ""  # how the other plan's trial ended, if not with a measurement
    keeps: bool | None = None  # whether the other plan is forecast to keep the headroom


def changes(plan: Plan, other: Plan) -> tuple[Change, ...]:
    """The knobs in which two plans differ."""
    return tuple(
        Change(knob=name, ours=getattr(plan, name), theirs=getattr(other, name))
        for name in differing_knobs(plan, other)
    )


def knob_effects(record: Record, other: Plan, ground: ForecastContext) -> tuple[KnobEffect, ...]:
    """What each knob of a measured plan is worth, each alone set back to what it is in another.

    Of several plans that differ in a knob so a measured one goes first, then the fastest.
    """
    mine = without_accelerator(record.plan)
    tables = ground.sized.table, PlanTable.of(one.plan for one in ground.records)
    near = [
        (found.knob, table.plan(found.row)) for table in tables for found in neighbours(mine, table)
    ]
    found = []
    for change in changes(mine, without_accelerator(other)):
        alone = [
            plan
            for knob, plan in near
            if knob == change.knob and getattr(plan, knob) == change.theirs
        ]
        ways = [
            _worth(change, record, plan, ground.records, ground) for plan in dict.fromkeys(alone)
        ]
        unknown = KnobEffect(change=change, ratio=None, peak_bytes=None, trial=None)
        found.append(min(ways, key=_order, default=unknown))
    return tuple(found)


def _order(worth: KnobEffect) -> tuple[bool, bool, float]:
    ratio = float("inf") if worth.ratio is None else worth.ratio.value
    return worth.trial is None, worth.ratio is None, ratio


def single_changes(
    record: Record, records: Sequence[Record], ground: ForecastContext | None
) -> tuple[KnobEffect, ...]:
    """What becomes of a measured plan where one knob alone is changed, each value once.

    Args:
        record: The plan's.
        records: Trials, of plans that name no kind of nodes.
        ground: Tells what was not measured; without it that is left out.
    """
    mine = without_accelerator(record.plan)
    tables = [PlanTable.of(one.plan for one in records)]
    if ground is not None:
        tables.append(ground.sized.table)
    ways: dict[tuple[str, Any], list[Plan]] = {}
    for table in tables:
        for found in neighbours(mine, table):
            plan = table.plan(found.row)
            ways.setdefault((found.knob, getattr(plan, found.knob)), []).append(plan)
    told = []
    for (knob, value), plans in ways.items():
        change = Change(knob=knob, ours=getattr(mine, knob), theirs=value)
        worths = [_worth(change, record, plan, records, ground) for plan in dict.fromkeys(plans)]
        told.append(min(worths, key=_order))
    return tuple(told)


def _worth(
    change: Change,
    record: Record,
    other: Plan,
    records: Sequence[Record],
    ground: ForecastContext | None,
) -> KnobEffect:
    tried = next((one for one in reversed(records) if one.plan == other), None)
    ours = record.outcome
    if tried is not None and isinstance(ours, Measured):
        theirs = tried.outcome
        if isinstance(theirs, Measured):
            return KnobEffect(
                change=change,
                ratio=quotient(ours.samples_per_second, theirs.samples_per_second),
                peak_bytes=float(ours.memory.peak_bytes - theirs.memory.peak_bytes),
                trial=tried.number,
            )
        kind = theirs.kind
        return KnobEffect(change=change, ratio=None, peak_bytes=None, trial=tried.number, told=kind)
    here = None if ground is None else ground.expected(without_accelerator(record.plan))
    there = None if ground is None else ground.expected(other)
    if here is None or there is None:
        return KnobEffect(change=change, ratio=None, peak_bytes=None, trial=None)
    return KnobEffect(
        change=change,
        ratio=quotient(here.samples_per_second, there.samples_per_second),
        peak_bytes=here.peak_bytes.value - there.peak_bytes.value,
        trial=None,
        keeps=there.keeps,
    )


def phases_saved(record: Record, other: Record) -> Iterator[tuple[str, float, float]]:
    """Measured seconds of a step by what they are spent on: ours and theirs."""
    ours, theirs = record.outcome, other.outcome
    if isinstance(ours, Measured) and isinstance(theirs, Measured):
        for name in ("data", "forward", "backward", "optimizer"):
            yield name, getattr(ours.phases, name), getattr(theirs.phases, name)


def terms_saved(
    plan: Plan, other: Plan, ground: ForecastContext
) -> Iterator[tuple[str, float, float]]:
    """Forecast seconds of a step by term: ours and theirs; nothing where one is not legal now."""
    here, there = (
        ground.expected(without_accelerator(plan)),
        ground.expected(without_accelerator(other)),
    )
    if here is not None and there is not None:
        theirs = dict(there.seconds)
        for name, seconds in here.seconds:
            if seconds or theirs[name]:
                yield name, seconds, theirs[name]
