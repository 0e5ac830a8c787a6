"""Whether a plan is validated, and which one is validated next: judged from records alone.

A validation is a record of its own beside that of its trial, whose number it has. What it is worth
is derived each time from both, so that another headroom judges old validations anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.objective import Objective, throughput, ties_of_best
from search_spaces.knobs.registry import is_lossless
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Cancelled, Measured, Record, sentence

# Losses are compared over so many first steps: rounding, which grows from step to step, stays
# small by then, and a wrong gradient shows.
COMPARED_STEPS = 10
FEWEST_STEPS = (
    5  # of a reference, where there is one: the first loss alone says nothing of training
)
# Largest difference of losses, over the largest loss, between two plans that train the same. In
# fp32 the project's engines and layouts were within 2e-5 over 9 steps and 1e-4 over 11, a plan that
# does not train at all 1e-3 and more apart (tests/workers/test_same_training, fuzz).
SAME_FP32 = 1e-3
SAME_HALF = 0.02  # bf16 has 3 digits: tiny models were within 2 % of fp32 over 9 steps
SAME_LOSSY = 0.05  # 8-bit states, compressed gradients, another precision; dropout draws otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """Losses of a validation and of a reference plan, on the same samples and from the same seed.

    `apart` is the largest difference over the largest loss.
    """

    reference: int  # the trial of the reference plan
    steps: int
    apart: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether both plans train the same."""
        return self.apart <= self.tolerance


def loss_check(
    validation: Record,
    records: Sequence[Record],
    baseline: Plan,
    spec: SweepSpec,
    doubted: Collection[int] = (),
) -> LossCheck | None:
    """The validation's first losses beside a reference plan's; None if no other plan can tell.

    The reference is the lossless plan that was measured, over more than a few steps, and differs
    least from the plan that one would start with, which is that plan itself where it ran.

    Args:
        validation: Of any plan.
        records: The trials.
        baseline: The plan that one would start with.
        spec: Says what is lossless.
        doubted: Trials that are no reference, since their validation failed before.
    """
    others = [
        record
        for record in records
        if isinstance(record.outcome, Measured)
        and record.plan != validation.plan
        and record.number not in doubted
        and is_lossless(record.plan, spec)
    ]
    if not others or not isinstance(validation.outcome, Measured):
        return None
    reference = min(
        others,
        key=lambda record: (
            len(_losses(record)) < FEWEST_STEPS,
            _differences(record.plan, baseline),
            record.number,
        ),
    )
    steps, apart = loss_difference(_losses(validation), _losses(reference))
    return LossCheck(
        reference=reference.number,
        steps=steps,
        apart=apart,
        tolerance=loss_tolerance(validation.plan, validation.outcome, spec),
    )


def loss_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[int, float]:
    """How many of the first steps both have, and the largest difference over the largest loss."""
    pairs = list(zip(ours, theirs, strict=False))[:COMPARED_STEPS]
    largest = max((abs(loss) for _, loss in pairs), default=0.0)
    apart = max((abs(one - other) for one, other in pairs), default=0.0)
    return len(pairs), apart / largest if largest else float(apart > 0)


def loss_tolerance(plan: Plan, outcome: Measured, spec: SweepSpec) -> float:
    """How far losses of a plan may lie from another's on the same samples, of the largest one."""
    if not is_lossless(plan, spec) or (outcome.validation is not None and outcome.validation.draws):
        return SAME_LOSSY
    return SAME_FP32 if plan.precision == "fp32" else SAME_HALF


def failure(
    validation: Record,
    records: Sequence[Record],
    baseline: Plan,
    spec: SweepSpec,
    doubted: Collection[int] = (),
) -> str | None:
    """Why a validation does not hold, a sentence; None if it does. Arguments as of `loss_check`."""
    outcome = validation.outcome
    if not isinstance(outcome, Measured):
        return sentence(outcome)
    if short := next(Objective.of(spec).shortfalls(validation), None):
        return short
    check = loss_check(validation, records, baseline, spec, doubted)
    if check is not None and not check.holds:
        apart, may = 100 * check.apart, 100 * check.tolerance
        return (
            f"its losses are up to {apart:.2g} % apart from those of trial {check.reference} in"
            f" the first {check.steps} steps, where {may:g} % may be"
        )
    return slowness(validation, records, spec)


def slowness(validation: Record, records: Sequence[Record], spec: SweepSpec) -> str | None:
    """Sentence for a validation far slower than its trial; None for another."""
    trial = next((record for record in records if record.number == validation.number), None)
    if trial is None or not isinstance(trial.outcome, Measured):
        return None
    if not isinstance(validation.outcome, Measured):
        return None
    least = trial.outcome.samples_per_second.low * (1 - spec.validation.slower)
    if validation.outcome.samples_per_second.high >= least:
        return None
    ours, theirs = throughput(validation), throughput(trial)
    return f"it ran at {ours:.4g} samples/s, its trial at {theirs:.4g}"


def failures(
    validations: Iterable[Record], records: Sequence[Record], baseline: Plan, spec: SweepSpec
) -> Mapping[int, str]:
    """Trials whose validation failed, each with the reason; validations in the order of their ends.

    Of two validations of a trial the later one counts.
    """
    failed: dict[int, str] = {}
    for validation in validations:
        reason = failure(validation, records, baseline, spec, failed)
        failed.pop(validation.number, None)
        if reason is not None:
            failed[validation.number] = reason
    return failed


def candidates(
    records: Iterable[Record], failed: Mapping[int, str], goal: Objective
) -> list[Record]:
    """The best plan and its statistical equals, those aside whose validation failed.

    The one with most room first; where room is what is wanted, the fastest.
    """
    standing = [record for record in records if record.number not in failed]
    equal = ties_of_best(standing, goal)
    return sorted(equal, key=_slowness if goal.metric == "headroom" else _share)


def next_validation(
    records: Sequence[Record], validations: Sequence[Record], baseline: Plan, spec: SweepSpec
) -> Record | None:
    """The trial to validate now; None if one is validated already, or enough were tried.

    A validation that failed by its speed alone is repeated once, since other work on the machine
    makes it as slow. Tries count plans, and anew once other trials have ended.
    """
    failed = failures(validations, records, baseline, spec)
    if (
        spec.validation.enabled
        and (again := _once_slow(records, validations, failed, spec)) is not None
    ):
        return again
    best = candidates(records, failed, Objective.of(spec))
    if not spec.validation.enabled or not best or validated_among(best, validations) is not None:
        return None
    last = max(record.ended_at for record in records)
    tried = {
        validation.number for validation in validations if validation.ended_at > last
    } & failed.keys()
    return best[0] if len(tried) < spec.validation.tries else None


def _once_slow(
    records: Sequence[Record],
    validations: Sequence[Record],
    failed: Mapping[int, str],
    spec: SweepSpec,
) -> Record | None:
    """The trial of the last validation, if that failed by speed alone and was the trial's first."""
    if not validations or failed.get(validations[-1].number) is None:
        return None
    last = validations[-1]
    if failed[last.number] != slowness(last, records, spec):
        return None
    if sum(validation.number == last.number for validation in validations) > 1:
        return None
    return next((record for record in records if record.number == last.number), None)


def validated_among(best: Sequence[Record], validations: Sequence[Record]) -> Record | None:
    """The validation of the first of these trials that has one; none of theirs failed."""
    known = {validation.number: validation for validation in validations}
    return next((known[record.number] for record in best if record.number in known), None)


def counts_as_validation(record: Record) -> bool:
    """True if the record is of a validation that ended; one that was stopped is run again."""
    return record.validation and not isinstance(record.outcome, Cancelled)


def _losses(record: Record) -> tuple[float, ...]:
    return record.outcome.losses if isinstance(record.outcome, Measured) else ()


def _differences(plan: Plan, other: Plan) -> int:
    theirs = other.as_dict()
    return sum(value != theirs[name] for name, value in plan.as_dict().items())


def _slowness(record: Record) -> float:
    return -throughput(record)


def _share(record: Record) -> float:
    return record.outcome.memory.share if isinstance(record.outcome, Measured) else 1.0
