"""Repeats: trials that measure the leading plans again.

One trial samples one state of the machine. Repeats show how much trials of the same plan differ;
that decides how many there are, whether a leader is clear, and how wide each interval is.
"""

from __future__ import annotations

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
# Repeats: `FINALISTS` where trials of a plan differ by this deviation, `_MOST` by the second one
_QUIET, _NOISIEST, _MOST = 0.01, 0.2, 40


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


def most_repeats(records: Sequence[Record], spec: SweepSpec) -> int:
    """Returns how many repeats there may be: few where trials of a plan agree, more where not.

    At most `validation.repeats` and `budget.trials`, but each finalist is measured again.
    """
    most = _MOST
    noise = Speeds.of(records, (), Objective.of(spec)).noise
    if noise.degrees:
        share = min((noise.deviation - _QUIET) / (_NOISIEST - _QUIET), 1.0)
        most = FINALISTS + round(share * (_MOST - FINALISTS))
    return min(spec.validation.repeats, max(min(most, spec.budget.trials), FINALISTS))


def repeats_left(records: Sequence[Record], running: Sequence[Plan], spec: SweepSpec) -> int:
    """Returns how many more repeats may start; none once they took `budget.minutes`."""
    done = repeats_at_the_end(records)
    if sum(one.ended_at - one.started_at for one in done) > 60 * spec.budget.minutes:
        return 0
    return most_repeats(records, spec) - len(done) - len(running)


def next_repeat(
    records: Sequence[Record],
    running: Sequence[Plan],
    leaders: Sequence[Plan],
    baseline: Plan,
    spec: SweepSpec,
) -> Plan | None:
    """Returns the plan to measure again now; None if the leader is clear or enough were measured.

    First `FINALISTS` leaders and the baseline once. Then the leader and its first challenger, the
    one with fewer measurements first, so that drift of the machine affects both alike.

    Args:
        records: All trials, repeats among them.
        running: Plans whose repeats run.
        leaders: Leader and challengers by all of these records; one alone is clearly the best.
        baseline: The baseline.
        spec: Says how many repeats there may be.
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
    failed = infeasible_plans(records, Objective.of(spec))
    first_two = [plan for plan in leaders if plan not in failed][:2]
    if len(first_two) < 2:
        return None
    return min(first_two, key=lambda plan: measured[plan] + running.count(plan))
