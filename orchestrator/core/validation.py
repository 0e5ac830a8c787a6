"""Checks of validations, the reruns of the best plans.

A validation is a record with the number of its trial. Its result is derived from both records each
time, so that a changed headroom applies to old validations too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.losses import LossCheck, gradient_difference, loss_check
from orchestrator.core.objective import Objective, Violation
from orchestrator.core.records import Record
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Cancelled, Measured, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFailure:
    """Reason why a validation failed: a constraint, a gradient or losses off, or its outcome.

    Being slower than its trial is not a failure: the validation counts as one more measurement.
    """

    outcome: Outcome
    violation: Violation | None = None
    gradient: tuple[int, float] | None = None  # see `gradient_difference`
    check: LossCheck | None = None


def failure(
    validation: Record,
    records: Sequence[Record],
    baseline: Plan,
    spec: SweepSpec,
    failed: Collection[int] = (),
) -> ValidationFailure | None:
    """Returns the reason why a validation failed, None if it passed; see `loss_check`."""
    outcome = validation.outcome
    if not isinstance(outcome, Measured):
        return ValidationFailure(outcome=outcome)
    if violation := next(Objective.of(spec).violations(validation), None):
        return ValidationFailure(outcome=outcome, violation=violation)
    check = loss_check(validation, records, baseline, spec, failed)
    if check is not None and not check.holds:
        return ValidationFailure(outcome=outcome, check=check)
    if gradient := gradient_difference(validation, records, spec):
        return ValidationFailure(outcome=outcome, gradient=gradient)
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
