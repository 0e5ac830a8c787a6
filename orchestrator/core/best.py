"""The best plans of a sweep, by all of its measurements."""

from collections.abc import Mapping, Sequence

from orchestrator.core.objective import Objective, memory_of, throughput, ties_of_best
from orchestrator.core.records import Record
from orchestrator.core.repeats import infeasible_plans, is_repeat
from orchestrator.core.speeds import Speeds
from orchestrator.core.validation import ValidationFailure
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import SPEED_METRICS
from search_spaces.trial import Measured


def leaders(
    records: Sequence[Record],
    validations: Sequence[Record],
    failed: Mapping[int, ValidationFailure],
    spec: SweepSpec,
) -> list[Record]:
    """Returns the best plan and its statistical ties, without those whose validation failed.

    Each is the first trial of its plan, with the pooled speed of all its measurements. Once leading
    plans were measured again, a plan that was measured once is among them only if its whole
    interval is faster: the fastest of many single measurements was lucky.

    The plan whose interval has the highest lower end comes first; without repeats, the highest
    mean; with `objective.prefer: headroom`, the most free memory; and if headroom is the objective,
    the fastest.
    """
    objective = Objective.of(spec)
    eligible = [record for record in records if record.number not in failed]
    if objective.metric not in SPEED_METRICS:  # of which no repeat tells
        out = infeasible_plans(records, objective)
        first = [one for one in eligible if not is_repeat(one) and one.plan not in out]
        return sorted(ties_of_best(first, objective), key=throughput, reverse=True)
    if not validations and not any(map(is_repeat, records)):
        ties = ties_of_best(eligible, objective)
    else:
        speeds = Speeds.of(records, validations, objective)
        ties = _pooled_ties(eligible, objective, speeds)
    if spec.objective.prefer == "headroom":
        ties = sorted(ties, key=lambda record: memory_of(record).share)
    return ties


def _pooled_ties(records: Sequence[Record], objective: Objective, speeds: Speeds) -> list[Record]:
    first, repeated = dict[Plan, Record](), set[Plan]()
    for record in records:
        if isinstance(record.outcome, Measured) and record.plan in speeds.by_plan:
            if is_repeat(record):
                repeated.add(record.plan)
            else:
                first.setdefault(record.plan, record)
    infeasible = infeasible_plans(records, objective)
    plans = [plan for plan in first if plan not in infeasible]
    if fastest := max((speeds.score(plan) for plan in plans if plan in repeated), default=None):
        plans = [
            plan
            for plan in plans
            if plan in repeated or speeds.score(plan) - speeds.half_width(plan) > fastest
        ]
    if not plans:
        return []
    rank = speeds.lower_bound if repeated else speeds.score
    leader = max(plans, key=rank)
    ties = [
        plan
        for plan in plans
        if speeds.score(plan) >= speeds.score(leader) - speeds.margin(plan, leader)
    ]
    return [speeds.record(first[plan]) for plan in sorted(ties, key=rank, reverse=True)]
