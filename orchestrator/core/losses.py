"""Comparison of the losses of two runs, and how far apart they may be.

Plans that train the same differ by rounding alone. Rounding differences grow by model, data and
precision; a repeat of a plan from perturbed weights measures by how much.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from orchestrator.core.objective import is_measured
from orchestrator.core.records import Record
from search_spaces.facts import LossDependence
from search_spaces.knobs.registry import computes_exactly
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured

# First steps whose losses are compared: few enough that rounding errors, which grow from step to
# step, stay small, and enough for a wrong gradient to show.
COMPARED_STEPS = 10
MIN_REFERENCE_STEPS = 5  # if possible: the first loss alone says nothing of training
# Largest difference of losses, relative to the largest loss, between two plans that train the same.
# In fp32 the project's engines and layouts differed by up to 2e-5 over 9 steps and 1e-4 over 11; a
# plan that does not train at all differed by 1e-3 or more (tests/workers/test_same_training, fuzz).
TOLERANCE_FP32 = 1e-3
# In bf16 and fp16 the tolerance is this many times the difference of a repeat from perturbed
# weights. Plans of tiny models differed by up to 3 times that, DeepSpeed's ZeRO 0 by up to 7
# (docs/internals/decisions/0015)
ROUNDING_FACTOR = 10
TOLERANCE_HALF = 0.02  # and at most this, which holds without a repeat too
TOLERANCE_LOSSY = 0.05  # 8-bit states, other precisions, dropout masks

# fp32, repeat: rounding alone explains the tolerance; lossy, draws: the plans may differ by more;
# usual: no repeat measured rounding
ToleranceBasis = Literal["fp32", "repeat", "usual", "lossy", "draws"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTolerance:
    """Largest relative difference of losses that is allowed on the same samples.

    Attributes:
        share: Of the largest loss.
        basis: What it follows from.
        repeat: Number of the repeat that it is derived from.
        rounding: How much the losses of that repeat differ from those of the trial.
        steps: First steps, in which rounding explains no more than `TOLERANCE_HALF`.
    """

    share: float
    basis: ToleranceBasis
    repeat: int | None = None
    rounding: float | None = None
    steps: int = COMPARED_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """Comparison of the losses of a validation and a reference plan, on equal samples and seed.

    Attributes:
        reference: The trial of the reference plan.
        steps: Number of compared steps.
        difference: The largest difference, relative to the largest loss.
        tolerance: What it may be, and why.
        first_step: The first step that differs by more, counted from 1; None if none does.
        unstable: The trial whose plan differed by more than that between two runs, so that the
            difference may not come from the knobs; None if neither did, or each ran once.
        changes: The knobs in which the two plans differ.
        probed: What the probe of the model found about these knobs.
    """

    reference: int
    steps: int
    difference: float
    tolerance: LossTolerance
    first_step: int | None = None
    unstable: int | None = None
    changes: tuple[str, ...] = ()
    probed: LossDependence | None = None

    @property
    def holds(self) -> bool:
        """True if both plans train the same."""
        return self.difference <= self.tolerance.share


def gradient_difference(
    run: Record, records: Sequence[Record], spec: SweepSpec
) -> tuple[int, float] | None:
    """Compares the first gradient of a run, before any update, with the first lossless trial's.

    Returns that trial and the difference of norms, as a share, if it is above the tolerance: that
    of losses; in 16 bits, where norms round more, the largest. None too without a norm.
    """
    reference = next((one for one in records if _is_reference(one, run, spec) and _norm(one)), None)
    if reference is None or not (norm := _norm(run)):
        return None
    tolerance = loss_tolerance(run, records, spec, reference.plan)
    least = 0.0 if tolerance.basis == "fp32" else TOLERANCE_HALF
    share = abs(norm / (_norm(reference) or norm) - 1)
    holds = tolerance.basis == "draws" or share <= max(tolerance.share, least)
    return None if holds else (reference.number, share)


def _norm(record: Record) -> float | None:
    return record.outcome.gradient_norm if isinstance(record.outcome, Measured) else None


def _is_reference(record: Record, run: Record, spec: SweepSpec) -> bool:
    """Returns True for a measured lossless trial with the micro-batch of a run if that matters."""
    alike = spec.train.micro_batch is None or record.plan.micro_batch == run.plan.micro_batch
    return alike and is_measured(record) and computes_exactly(record.plan, spec)


def loss_check(
    validation: Record,
    records: Sequence[Record],
    baseline: Plan,
    spec: SweepSpec,
    failed: Collection[int] = (),
) -> LossCheck | None:
    """Compares the first losses of a validation with those of a reference plan.

    The reference is the measured lossless plan that differs least from the baseline, and is the
    baseline itself if that was measured. Plans with at least `MIN_REFERENCE_STEPS` steps go first.

    Args:
        validation: The validation of any plan.
        records: The trials.
        baseline: The baseline.
        spec: Decides which plans are lossless.
        failed: Trials whose validation failed, which are no reference.

    Returns:
        The comparison; None if the validation or every possible reference was not measured.
    """
    reference = _reference(validation, records, baseline, spec, failed)
    if reference is None or not isinstance(validation.outcome, Measured):
        return None
    tolerance = loss_tolerance(validation, records, spec, reference.plan)
    differences = loss_differences(_losses(validation), _losses(reference))[: tolerance.steps]
    above = (step for step, one in enumerate(differences, start=1) if one > tolerance.share)
    first_step = next(above, None)
    changes = _changes(validation.plan, reference.plan)
    unstable = probed = None
    if first_step is not None:
        runs = (validation, *records)
        varying = (one for one in (validation, reference) if _varies(one, runs, tolerance))
        unstable = next((one.number for one in varying), None)
        probed = _probed(validation.outcome, changes)
    return LossCheck(
        reference=reference.number,
        steps=len(differences),
        difference=max(differences, default=0.0),
        tolerance=tolerance,
        first_step=first_step,
        unstable=unstable,
        changes=changes,
        probed=probed,
    )


def _reference(
    validation: Record,
    records: Sequence[Record],
    baseline: Plan,
    spec: SweepSpec,
    failed: Collection[int],
) -> Record | None:
    """Returns the trial to compare a validation with, None without any; see `loss_check`."""
    failed_plans = {record.plan for record in records if record.number in failed}
    references = [
        record
        for record in records
        if _is_reference(record, validation, spec)
        and record.plan != validation.plan
        and record.plan not in failed_plans
    ]
    return min(
        references,
        key=lambda record: (
            len(_losses(record)) < MIN_REFERENCE_STEPS,
            len(_changes(record.plan, baseline)),
            _is_perturbed(record),
            record.number,
        ),
        default=None,
    )


def _probed(outcome: Measured, changes: Collection[str]) -> LossDependence | None:
    found = () if outcome.validation is None else outcome.validation.dependences
    return next((one for one in found if not one.knobs or set(one.knobs) & set(changes)), None)


def _varies(run: Record, runs: Sequence[Record], tolerance: LossTolerance) -> bool:
    """Returns True if another run of the same plan has other losses, on the same samples."""
    differences = (
        loss_differences(_losses(other), _losses(run))[: tolerance.steps]
        for other in runs
        if other is not run and other.plan == run.plan
    )
    return any(max(one, default=0.0) > tolerance.share for one in differences)


def loss_differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Returns the difference of each compared step, relative to the largest loss of all."""
    pairs = list(zip(ours, theirs, strict=False))[:COMPARED_STEPS]
    largest = max((abs(loss) for _, loss in pairs), default=0.0)
    apart = (abs(loss - reference) for loss, reference in pairs)
    return [each / largest if largest else float(each > 0) for each in apart]


def loss_tolerance(
    run: Record, records: Sequence[Record], spec: SweepSpec, reference: Plan
) -> LossTolerance:
    """Returns the largest relative difference of losses that is allowed on the same samples.

    In bf16 and fp16 it follows from repeats from perturbed weights, of the reference and of the
    plan, which may compute its loss in 16 bits too. A plan whose own runs differ by more than the
    reference's repeat allows cannot widen its tolerance.

    Args:
        run: What is compared: a validation, or a trial that an export is to reproduce.
        records: The trials and repeats.
        spec: Decides which plans are lossless.
        reference: The plan that it is compared with.
    """
    outcome = run.outcome
    if not computes_exactly(run.plan, spec):
        return LossTolerance(share=TOLERANCE_LOSSY, basis="lossy")
    validation = outcome.validation if isinstance(outcome, Measured) else None
    if validation is not None and validation.draws:
        return LossTolerance(share=TOLERANCE_LOSSY, basis="draws")
    if run.plan.precision == "fp32":
        return LossTolerance(share=TOLERANCE_FP32, basis="fp32")
    ours, theirs = _roundings(run.plan, records), _roundings(reference, records)
    if not ours:
        return LossTolerance(share=TOLERANCE_HALF, basis="usual")
    exact = [one for one in records if not _is_perturbed(one)]
    if theirs and _varies(run, exact, tolerance := _from_roundings(theirs)):
        return tolerance
    return _from_roundings(ours | theirs)


def _from_roundings(roundings: Mapping[int, Sequence[float]]) -> LossTolerance:
    """Returns the tolerance from the differences of repeats in each step, by number."""
    largest = [max(step) for step in zip(*roundings.values(), strict=False)]
    explained = takewhile(lambda one: ROUNDING_FACTOR * one <= TOLERANCE_HALF, largest)
    steps = max(len(list(explained)), 1)
    repeat = max(roundings, key=lambda number: max(roundings[number][:steps]))
    rounding = max(largest[:steps])
    return LossTolerance(
        share=min(max(ROUNDING_FACTOR * rounding, TOLERANCE_FP32), TOLERANCE_HALF),
        basis="repeat",
        repeat=repeat,
        rounding=rounding,
        steps=steps,
    )


def _is_perturbed(record: Record) -> bool:
    return isinstance(record.outcome, Measured) and record.outcome.perturbed


def _roundings(plan: Plan, records: Sequence[Record]) -> dict[int, list[float]]:
    """Returns how the losses of each repeat of a plan differ from those of its trial, by number."""
    runs = [one for one in records if one.plan == plan and isinstance(one.outcome, Measured)]
    trial = next((one for one in runs if not _is_perturbed(one)), None)
    if trial is None:
        return {}
    found = {
        one.number: loss_differences(_losses(one), _losses(trial))
        for one in runs
        if _is_perturbed(one)
    }
    return {number: differences for number, differences in found.items() if differences}


def _losses(record: Record) -> tuple[float, ...]:
    return record.outcome.losses if isinstance(record.outcome, Measured) else ()


def _changes(plan: Plan, other: Plan) -> tuple[str, ...]:
    values = other.as_dict()
    return tuple(name for name, value in plan.as_dict().items() if value != values[name])
