"""The choice of validations and their checks, as tables: records in, decisions out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.budget import validation_deadline_seconds
from orchestrator.core.events import TrialEnded
from orchestrator.core.losses import COMPARED_STEPS, loss_check
from orchestrator.core.reasons import Remeasures
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, advance
from orchestrator.report.labels import failure_words
from search_spaces.facts import LossDependence
from search_spaces.trial import Measured, Outcome, ValidationRun
from tests.orchestrator.core.values import numbers, state_after
from tests.outcomes import make_measured, make_oom

ON = {"enabled": True, "repeats": 0}
BY_ROOM = {"prefer": "headroom"}
SLOW, FAST, ROOMY = make_measured(20.0), make_measured(40.0, 0.8), make_measured(39.5, 0.5)


def searched(outcomes: Sequence[Outcome] = (SLOW, FAST, ROOMY), **sections: Any) -> SweepState:
    """Returns the state after a search, before its validations."""
    return state_after(outcomes, **({"validation": ON, "objective": BY_ROOM} | sections))


def best_of(state: SweepState) -> int | None:
    """Returns the trial of the best plan."""
    return None if state.best is None else state.best.number


def next_of(state: SweepState) -> int | None:
    """Returns the trial whose plan is validated next."""
    return None if state.next_to_validate is None else state.next_to_validate.number


def validation_of(state: SweepState, number: int, outcome: Outcome | None = None) -> Record:
    """Adds a validation after all trials, with its trial's outcome or another one."""
    trial = next(record for record in state.records if record.number == number)
    last = max(record.ended_at for record in (*state.records, *state.validations))
    return replace(
        trial,
        outcome=outcome or trial.outcome,
        validation=True,
        started_at=last + 1,
        ended_at=last + 9,
    )


def after_validation(state: SweepState, number: int, outcome: Outcome | None = None) -> SweepState:
    validation = validation_of(state, number, outcome)
    return advance(state, TrialEnded(record=validation, at=validation.ended_at))


def validation_run(**changes: Any) -> ValidationRun:
    base: dict[str, Any] = {
        "worst_steps": 4,
        "evaluation_seconds": 0.1,
        "evaluation_loss": 6.5,
        "checkpoint_seconds": 0.2,
        "checkpoint_bytes": 25_000_000,
        "draws": False,
    }
    return ValidationRun(**base | changes)


def words_of(state: SweepState) -> dict[int, str]:
    """Reasons of failed validations in words, by trial."""
    return {number: failure_words(each) for number, each in state.failed_validations.items()}


def test_of_equals_the_one_with_most_room_is_validated_first_and_is_the_answer() -> None:
    state = searched()

    assert numbers(state.ties) == [2, 1]
    assert best_of(state) == 2
    assert next_of(state) == 2
    state = after_validation(state, 2)
    assert state.next_to_validate is None
    assert state.validated is not None
    assert best_of(state) == 2
    assert state.best != state.validated  # the trial, and beside it its validation
    assert state.failed_validations == {}


def test_after_a_failure_the_next_plan_is_validated() -> None:
    state = after_validation(searched(), 2, make_oom(phase="evaluation"))
    assert next_of(state) == 1
    assert best_of(state) == 1
    state = after_validation(state, 1, make_measured(40.0, 0.97))
    assert next_of(state) == 0
    state = after_validation(state, 0)

    assert best_of(state) == 0
    assert words_of(state) == {
        2: "out of device memory in evaluation, wanted 130 % of the limit",
        1: "its peak of 97.0 % of the limit leaves less than 5 % free",
    }


def test_tries_end() -> None:
    state = searched([SLOW, FAST, ROOMY, make_measured(39.9, 0.7)], validation=ON | {"tries": 2})
    state = after_validation(after_validation(state, 2, make_oom()), 3, make_oom())

    assert state.next_to_validate is None
    assert state.validated is None
    assert best_of(state) == 1  # the fastest of which nothing bad is known


@pytest.mark.parametrize(
    ("outcomes", "sections"),
    [
        ((), {}),
        ((make_oom(), make_measured(40.0, 0.97)), {}),
        ((SLOW, FAST), {"validation": {"enabled": False}}),
    ],
    ids=["no trial", "nothing feasible", "switched off"],
)
def test_nothing_to_validate(outcomes: Sequence[Outcome], sections: dict[str, Any]) -> None:
    assert searched(outcomes, **sections).next_to_validate is None


def test_a_better_plan_found_later_is_validated_too() -> None:
    state = after_validation(searched([SLOW, FAST]), 1)
    assert state.next_to_validate is None
    plan = state.space.candidates[7]
    faster = replace(state.records[0], number=9, plan=plan, outcome=make_measured(80.0))

    later = advance(state, TrialEnded(record=faster, at=faster.ended_at))

    assert next_of(later) == 9
    assert best_of(later) == 9
    assert later.validated is None  # that of trial 1 holds, but it is no longer among the best


def test_a_slow_validation_is_one_more_measurement_of_its_plan() -> None:
    """The trial was lucky, which is no reason to exclude the plan."""
    state = searched([SLOW, FAST, make_measured(39.0, 0.8)], objective={})
    assert next_of(state) == 1

    state = after_validation(state, 1, make_measured(20.0, 0.8))
    assert state.failed_validations == {}
    assert state.best is not None
    assert state.best.number == 2  # 39.0 by one trial, trial 1's plan by two: 28.3
    assert next_of(state) == 2

    held = after_validation(state, 2, make_measured(39.0, 0.8))
    assert next_of(held) is None
    assert best_of(held) == 2
    lucky = held.speeds.record(held.records[1]).outcome
    assert isinstance(lucky, Measured)
    assert lucky.samples_per_second.value == pytest.approx((40.0 * 20.0) ** 0.5)


def with_losses(losses: Sequence[float], **changes: Any) -> Measured:
    return make_measured(40.0, **{"losses": tuple(losses), **changes})


def checked(state: SweepState, number: int, outcome: Outcome) -> Any:
    validation = validation_of(state, number, outcome)
    return loss_check(validation, state.records, state.space.baseline, state.spec)


LOSSES = [6.9 - 0.05 * step for step in range(14)]


@pytest.mark.parametrize(
    ("changes", "off", "holds"),
    [({}, 1e-4, True), ({}, 2e-3, False), ({"validation": validation_run(draws=True)}, 2e-2, True)],
)
def test_losses_that_are_apart(changes: dict[str, Any], off: float, holds: bool) -> None:
    losses = [*LOSSES[:4], LOSSES[4] - off * LOSSES[0], *LOSSES[5:]]
    state = searched([SLOW, FAST])
    found = checked(state, 1, with_losses(losses, **changes))

    assert (found.reference, found.steps) == (0, COMPARED_STEPS)
    assert found.difference == pytest.approx(off)
    assert found.holds is holds
    state = after_validation(state, 1, with_losses(losses, **changes))
    assert (state.validated is not None) is holds
    if not holds:
        reason = "from those of trial 0 over the first 10 steps"
        assert reason in words_of(state)[1]


@pytest.mark.parametrize(
    ("changes", "precision", "off", "holds"),
    [
        ({}, "fp32", 5e-4, True),
        ({}, "fp32", 2e-3, False),
        ({}, "bf16", 1e-2, True),
        ({}, "bf16", 3e-2, False),
        ({"validation": validation_run(draws=True)}, "fp32", 0.5, True),
    ],
)
def test_gradients_that_are_apart(
    changes: dict[str, Any], precision: str, off: float, holds: bool
) -> None:
    first = make_measured(20.0, gradient_norm=2.0)
    train = {"global_batch": 16, "sequence_length": 128, "precision": precision}
    state = searched([first, FAST], train=train)
    outcome = make_measured(40.0, gradient_norm=2 + 2 * off, **changes)
    state = after_validation(state, 1, outcome)

    off_words = f"the norm of its first gradient is {100 * off:.2g} % off that of trial 0"
    assert words_of(state) == ({} if holds else {1: off_words})


@pytest.mark.parametrize(
    ("tried", "validated", "unstable", "words"),
    [
        (2e-3, 2e-3, None, "the plans differ in "),  # the plan, each time
        (0.0, 2e-3, 1, "two runs of the plan of trial 1 already differ"),
    ],
)
def test_losses_that_are_apart_say_since_when_and_by_what(
    tried: float, validated: float, unstable: int | None, words: str
) -> None:
    def off(share: float) -> Measured:
        return with_losses([*LOSSES[:4], LOSSES[4] - share * LOSSES[0], *LOSSES[5:]])

    baseline = replace(off(0.0), samples_per_second=SLOW.samples_per_second)
    state = searched([baseline, off(tried)])
    found = checked(state, 1, off(validated))

    assert (found.first_step, found.unstable) == (5, unstable)
    reference, plan = (record.plan.as_dict() for record in state.records)
    assert set(found.changes) == {name for name in plan if plan[name] != reference[name]}
    said = words_of(after_validation(state, 1, off(validated)))[1]
    assert f"(tolerance 0.1 % in fp32, first exceeded in step 5); {words}" in said


def drifting(shares: Sequence[float], **changes: Any) -> Measured:
    """Returns a run whose losses differ from `LOSSES` by these shares of the largest one."""
    shares = [*shares, *[shares[-1]] * (len(LOSSES) - len(shares))]
    drifted = [one - share * LOSSES[0] for one, share in zip(LOSSES, shares, strict=True)]
    return with_losses(drifted, **changes)


def in_bf16(*repeats: tuple[int, Sequence[float]], off: float = 0.0) -> SweepState:
    """Returns a sweep in bf16 of a baseline and two more plans, with repeats of some trials.

    Each repeat names its trial and by how much other rounding changed its losses. Those of trial 1
    are `off` by this share each time.
    """
    train = {"global_batch": 16, "sequence_length": 128, "precision": "bf16"}
    trials = [
        drifting([off if number == 1 else 0.0], samples_per_second=one.samples_per_second)
        for number, one in enumerate((SLOW, FAST, ROOMY))
    ]
    state = searched(trials, train=train, space={"precision": ["bf16"], "attention": ["sdpa"]})
    for number, shares in repeats:
        drift = [share + (off if number == 1 else 0.0) for share in shares]
        again = replace(
            state.records[number],
            number=len(state.records),
            outcome=drifting(drift, perturbed=True),
            reason=Remeasures(trial=number),
        )
        state = replace(state, records=(*state.records, again))
    return state


@pytest.mark.parametrize(
    ("repeats", "share", "basis", "repeat"),
    [
        ((), 0.02, "usual", None),
        (((0, [4e-4]),), 0.02, "usual", None),  # the plan may compute its loss in 16 bits too
        (((1, [4e-4]),), 4e-3, "repeat", 3),
        (((1, [8e-4]), (0, [4e-4]), (2, [9e-3])), 8e-3, "repeat", 3),
    ],
)
def test_what_other_rounding_changes_in_a_repeat_is_the_tolerance(
    repeats: Sequence[tuple[int, Sequence[float]]], share: float, basis: str, repeat: int | None
) -> None:
    def found(off: float) -> Any:
        return checked(in_bf16(*repeats, off=off), 1, drifting([off]))

    assert found(0.0).tolerance.share == pytest.approx(share)
    assert (found(0.0).tolerance.basis, found(0.0).tolerance.repeat) == (basis, repeat)
    assert found(0.9 * share).holds
    assert (found(1.1 * share).holds, found(1.1 * share).unstable) == (False, None)
    words = words_of(after_validation(in_bf16(*repeats, off=0.03), 1, drifting([0.03])))[1]
    assert "(tolerance " in words
    assert "first exceeded in step 1); the plans differ in" in words
    if repeat is not None:
        assert f"from trial {repeat}, a repeat from perturbed weights" in words


def test_a_plan_that_differs_from_itself_cannot_widen_its_own_tolerance() -> None:
    state = in_bf16((0, [1e-4]), (1, [2e-3]))

    assert checked(state, 1, drifting([0.0])).tolerance.share == pytest.approx(0.02)
    found = checked(state, 1, drifting([1.5e-3]))  # its trial had none
    assert found.tolerance.share == pytest.approx(1e-3)
    assert (found.holds, found.unstable) == (False, 1)


def test_what_the_probe_found_explains_a_difference_before_any_plan() -> None:
    data = LossDependence(on="data", knobs=(), share=0.4)
    attention = LossDependence(on="attention", knobs=("prefetch_mib",), share=0.036)
    for found, probed in ((data, data), (attention, None)):
        off = drifting([0.1], validation=validation_run(dependences=(found,)))
        state = searched([drifting([0.0]), drifting([0.1])])  # the plan, each time
        assert checked(state, 1, off).probed == probed
    off = drifting([0.1], validation=validation_run(dependences=(data,)))
    words = words_of(after_validation(searched([SLOW, FAST]), 1, off))[1]
    assert "the probe of the model shows why: 40 % of the values of a batch differ" in words


def test_precision_and_lossy_knobs_widen_what_may_be() -> None:
    def tolerance(precision: str, trained: str) -> float:
        train = {"global_batch": 16, "sequence_length": 128, "precision": trained}
        space = {"precision": [precision], "attention": ["sdpa"]}
        state = searched([SLOW, FAST], train=train, space=space)
        reference = replace(
            state.records[0], plan=replace(state.records[0].plan, precision=trained)
        )
        state = replace(state, records=(reference, *state.records[1:]))
        value: float = checked(state, 1, with_losses(LOSSES)).tolerance.share
        return value

    assert tolerance("fp32", "fp32") == 1e-3
    assert tolerance("bf16", "bf16") == 0.02
    assert tolerance("bf16", "fp32") == 0.05


def test_the_reference_is_another_plan_near_the_baseline() -> None:
    oom_first = searched([make_oom(), SLOW, FAST, ROOMY])
    found = checked(oom_first, 1, with_losses(LOSSES))

    assert found.reference in (2, 3)
    baseline = searched([FAST, SLOW])  # the winner is the baseline itself
    assert checked(baseline, 0, with_losses(LOSSES)).reference == 1


def test_losses_are_compared_with_a_plan_of_the_same_micro_batch() -> None:
    """The plans with 2 samples are both lossy, and train the same."""
    train = {"global_batch": 16, "sequence_length": 128, "precision": "fp32", "micro_batch": 1}
    state = searched([SLOW, FAST, ROOMY], train=train, space={"micro_batch": [1, 2]})

    def reference(*micro_batches: int) -> Any:
        sizes = zip(state.records, micro_batches, strict=True)
        plans = [replace(one.plan, micro_batch=size) for one, size in sizes]
        pairs = zip(state.records, plans, strict=True)
        records = tuple(replace(one, plan=plan) for one, plan in pairs)
        return checked(replace(state, records=records), 1, with_losses(LOSSES))

    assert (reference(1, 2, 2).reference, reference(1, 2, 2).tolerance.share) == (2, 1e-3)
    assert reference(1, 2, 1) is None


def test_a_plan_whose_own_validation_failed_is_no_reference() -> None:
    state = searched([make_oom(), FAST, SLOW, make_measured(10.0)])
    first = checked(state, 1, with_losses(LOSSES)).reference
    wrong = with_losses([loss * 1.1 for loss in LOSSES])
    records = tuple(
        replace(record, outcome=replace(wrong, samples_per_second=FAST.samples_per_second))
        if record.number == first
        else record
        for record in state.records
    )
    state = after_validation(replace(state, records=records), first, wrong)
    assert list(state.failed_validations) == [first]

    state = after_validation(state, 1, FAST)

    assert state.validated is not None
    assert state.validated.number == 1


def test_a_validation_has_time_of_its_own() -> None:
    """Three times a trial's limit of 60 s, or less if the measured trial needs less."""
    state = searched()
    assert validation_deadline_seconds(state, state.records[1]) == 180.0

    state = searched(budget={"trial_seconds": 3600})
    step, saved = 16 / 40.0 * 1.015, 2 * 77_309_411 / 50e6
    assert validation_deadline_seconds(state, state.records[1]) == pytest.approx(
        60 + 4 * (0.4 + 7 * step) + 3 * 60 + saved, rel=1e-3
    )
