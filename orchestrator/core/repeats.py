"""Repeats: trials that measure the leading plans again.

One trial samples one state of the machine. Repeats show how much trials of the same plan differ;
that deviation decides whether a leader is clear, and is part of each interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from orchestrator.core.objective import Objective
from orchestrator.core.reasons import measures_again
from orchestrator.core.records import Record
from orchestrator.core.speeds import Speeds
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import SPEED_METRICS
from search_spaces.trial import Cancelled, Measured

FINALISTS = 3  # plans that are measured again before any of them is for a second time


def repeats_enabled(spec: SweepSpec) -> bool:
    """Returns True if leading plans are measured again; peaks of memory hardly differ."""
    section = spec.validation
    return section.enabled and section.repeats > 0 and spec.objective.metric in SPEED_METRICS


def is_repeat(record: Record) -> bool:
    """Returns True for a trial that measured a plan again."""
    return measures_again(record.reason)


def repeats_at_the_end(records: Sequence[Record]) -> list[Record]:
    """Returns the repeats since the last trial that was none; more trials renew the budget."""
    last = max((one.number for one in records if not is_repeat(one)), default=-1)
    return [one for one in records if is_repeat(one) and one.number > last]


def infeasible_plans(records: Iterable[Record], objective: Objective) -> frozenset[Plan]:
    """Returns the plans of which a trial violated a constraint, or a repeat failed."""
    return frozenset(
        one.plan
        for one in records
        if (isinstance(one.outcome, Measured) and not objective.feasible(one))
        or (is_repeat(one) and not isinstance(one.outcome, Measured | Cancelled))
    )


def repeats_left(records: Sequence[Record], running: Sequence[Plan], spec: SweepSpec) -> int:
    """Returns how many more repeats `validation.repeats` allows, besides those that run."""
    return spec.validation.repeats - len(repeats_at_the_end(records)) - len(running)


def next_repeat(
    records: Sequence[Record],
    running: Sequence[Plan],
    leaders: Sequence[Plan],
    baseline: Plan,
    spec: SweepSpec,
) -> Plan | None:
    """Returns the plan to measure again now; None if the leader is clear or the budget is used.

    First `FINALISTS` leaders and the baseline once. Then the search's first two leaders, the one
    with fewer measurements first, so that drift of the machine affects both alike.

    Args:
        records: All trials, repeats among them.
        running: Plans whose repeats run.
        leaders: The plans that the search expects to be best, by all of these records, best first.
        baseline: The baseline.
        spec: Says how many repeats there may be, and what difference matters.
    """
    if not set(leaders) - {baseline} or repeats_left(records, running, spec) < 1:
        return None
    again = Counter([*(one.plan for one in repeats_at_the_end(records)), *running])
    fresh = [plan for plan in leaders[:FINALISTS] if not again[plan]]
    if fresh and len(again.keys() - {baseline}) < FINALISTS:
        return fresh[0]
    measured = Counter(one.plan for one in records if isinstance(one.outcome, Measured))
    if measured[baseline] and not again[baseline]:
        return baseline
    objective = Objective.of(spec)
    failed = infeasible_plans(records, objective)
    speeds = Speeds.of(records, (), objective)
    left = [plan for plan in {**dict.fromkeys(leaders), **again} if plan in speeds.by_plan]
    left = [plan for plan in left if plan not in failed]
    if len(left) < 2 or not speeds.degrees or _is_clear(left, speeds, spec):
        return None
    first_two = [plan for plan in leaders if plan not in failed][:2]
    return min(first_two, key=lambda plan: measured[plan] + running.count(plan), default=None)


def _is_clear(plans: Sequence[Plan], speeds: Speeds, spec: SweepSpec) -> bool:
    """Returns True if no other plan can be meaningfully faster than the leader."""
    leader = max(plans, key=speeds.lower_bound)
    ahead = max(
        speeds.score(plan) - speeds.score(leader) + speeds.margin(plan, leader)
        for plan in plans
        if plan != leader
    )
    return ahead <= math.log1p(spec.objective.interval)
