"""Validation of the best plans: checks of the reruns.

A validation is a record of its own, with the number of its trial. Its result is derived from both
records each time, so that a changed headroom applies to old validations too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.objective import (
    Objective,
    Violation,
)
from orchestrator.core.records import Record
from search_spaces.knobs.registry import is_lossless
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Cancelled, Measured, Outcome

# First steps whose losses are compared: few enough that rounding errors, which grow from step to
# step, stay small, and enough for a wrong gradient to show.
COMPARED_STEPS = 10
MIN_REFERENCE_STEPS = (
    5  # of a reference, if possible: the first loss alone says nothing of training
)
# Largest difference of losses, relative to the largest loss, between two plans that train the same.
# In fp32 the project's engines and layouts differed by up to 2e-5 over 9 steps and 1e-4 over 11; a
# plan that does not train at all differed by 1e-3 or more (tests/workers/test_same_training, fuzz).
TOLERANCE_FP32 = 1e-3
TOLERANCE_HALF = 0.02  # bf16 has 3 digits: tiny models were within 2 % of fp32 over 9 steps
TOLERANCE_LOSSY = (
    0.05  # 8-bit states, compressed gradients, other precisions, different dropout masks
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """Comparison of the losses of a validation and a reference plan, on equal samples and seed.

    `difference` is the largest difference, relative to the largest loss.
    """

    reference: int  # the trial of the reference plan
    steps: int
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """True if both plans train the same."""
        return self.difference <= self.tolerance


def loss_check(
    validation: Record,
    records: Sequence[Record],
    baseline: Plan,
    spec: SweepSpec,
    doubted: Collection[int] = (),
) -> LossCheck | None:
    """Compares the first losses of a validation with those of a reference plan.

    The reference is the measured lossless plan that differs least from the baseline, and is the
    baseline itself if that was measured. Plans with at least `MIN_REFERENCE_STEPS` steps go first.

    Args:
        validation: The validation of any plan.
        records: The trials.
        baseline: The baseline.
        spec: Decides which plans are lossless.
        doubted: Trials whose validation failed, which are no reference.

    Returns:
        The comparison; None if the validation or every possible reference was not measured.
    """
    references = [
        record
        for record in records
        if isinstance(record.outcome, Measured)
        and record.plan != validation.plan
        and record.number not in doubted
        and is_lossless(record.plan, spec)
    ]
    if not references or not isinstance(validation.outcome, Measured):
        return None
    reference = min(
        references,
        key=lambda record: (
            len(_losses(record)) < MIN_REFERENCE_STEPS,
            _differences(record.plan, baseline),
            record.number,
        ),
    )
    steps, difference = loss_difference(_losses(validation), _losses(reference))
    return LossCheck(
        reference=reference.number,
        steps=steps,
        difference=difference,
        tolerance=loss_tolerance(validation.plan, validation.outcome, spec),
    )


def loss_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[int, float]:
    """Returns the compared steps, and the largest difference relative to the largest loss."""
    pairs = list(zip(ours, theirs, strict=False))[:COMPARED_STEPS]
    largest = max((abs(loss) for _, loss in pairs), default=0.0)
    difference = max((abs(loss - reference) for loss, reference in pairs), default=0.0)
    return len(pairs), difference / largest if largest else float(difference > 0)


def loss_tolerance(plan: Plan, outcome: Measured, spec: SweepSpec) -> float:
    """Returns the largest relative difference of losses that is allowed on the same samples."""
    if not is_lossless(plan, spec) or (outcome.validation is not None and outcome.validation.draws):
        return TOLERANCE_LOSSY
    return TOLERANCE_FP32 if plan.precision == "fp32" else TOLERANCE_HALF


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFailure:
    """Reason why a validation failed.

    `outcome`: it was not measured. `constraint`: it violates one. `losses`: they differ from those
    of the reference. One that was slower than its trial is no failure: it counts as one more
    measurement of the plan.
    """

    cause: Literal["outcome", "constraint", "losses"]
    outcome: Outcome
    violation: Violation | None = None
    check: LossCheck | None = None


def failure(
    validation: Record,
    records: Sequence[Record],
    baseline: Plan,
    spec: SweepSpec,
    doubted: Collection[int] = (),
) -> ValidationFailure | None:
    """Returns the reason why a validation failed, None if it passed; see `loss_check`."""
    outcome = validation.outcome
    if not isinstance(outcome, Measured):
        return ValidationFailure(cause="outcome", outcome=outcome)
    if violation := next(Objective.of(spec).violations(validation), None):
        return ValidationFailure(cause="constraint", outcome=outcome, violation=violation)
    check = loss_check(validation, records, baseline, spec, doubted)
    if check is not None and not check.holds:
        return ValidationFailure(cause="losses", outcome=outcome, check=check)
    return None


def failures(
    validations: Iterable[Record], records: Sequence[Record], baseline: Plan, spec: SweepSpec
) -> Mapping[int, ValidationFailure]:
    """Returns the reasons of failed validations, by trial number.

    Of two validations of a trial the later one counts. `validations` are in the order in which
    they ended.
    """
    failed: dict[int, ValidationFailure] = {}
    for validation in validations:
        reason = failure(validation, records, baseline, spec, failed)
        failed.pop(validation.number, None)
        if reason is not None:
            failed[validation.number] = reason
    return failed


def counts_as_validation(record: Record) -> bool:
    """Returns True for a validation that ended; one that was stopped is run again."""
    return record.validation and not isinstance(record.outcome, Cancelled)


def _losses(record: Record) -> tuple[float, ...]:
    return record.outcome.losses if isinstance(record.outcome, Measured) else ()


def _differences(plan: Plan, other: Plan) -> int:
    values = other.as_dict()
    return sum(value != values[name] for name, value in plan.as_dict().items())
