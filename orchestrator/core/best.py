"""The best plan of a sweep, by all of its measurements, and the plan that is validated next."""

import math
from collections.abc import Mapping, Sequence

from orchestrator.core.objective import Objective, memory_of, score, throughput, ties_of_best
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


def best_record(
    records: Sequence[Record],
    ties: Sequence[Record],
    validations: Sequence[Record],
    failed: Mapping[int, ValidationFailure],
    spec: SweepSpec,
) -> Record | None:
    """Returns the best plan: of plans within `objective.interval` of the leader, a validated one.

    Without one, the first of the ties; once `validation.tries` plans were validated, the first that
    passed.

    Args:
        records: The trials.
        ties: The best plans, from `leaders`.
        validations: All validations.
        failed: Those that failed.
        spec: The specification.
    """
    passed = {one.number for one in validations} - failed.keys()
    validated = [record for record in ties if record.number in passed]
    if not ties or not validated:
        return ties[0] if ties else None
    if len(_validated_last(records, validations)) >= spec.validation.tries:
        return validated[0]
    objective = Objective.of(spec)
    by_speed = objective.metric in SPEED_METRICS and spec.objective.prefer == "speed"
    enough = score(ties[0], objective) / (1 + spec.objective.interval) if by_speed else -math.inf
    equal = [record for record in validated if score(record, objective) >= enough]
    return equal[0] if equal else ties[0]


def next_validation(
    records: Sequence[Record],
    validations: Sequence[Record],
    ties: Sequence[Record],
    failed: Mapping[int, ValidationFailure],
    spec: SweepSpec,
) -> Record | None:
    """Returns the trial to validate now; None if the best is validated, or enough were tried.

    `validation.tries` counts plans, and starts again once other trials have ended.
    """
    best = best_record(records, ties, validations, failed, spec)
    if not spec.validation.enabled or best is None:
        return None
    if any(validation.number == best.number for validation in validations):
        return None
    tried = _validated_last(records, validations)
    return best if len(tried) < spec.validation.tries else None


def _validated_last(records: Sequence[Record], validations: Sequence[Record]) -> set[int]:
    last = max(record.ended_at for record in records)
    return {validation.number for validation in validations if validation.ended_at > last}
