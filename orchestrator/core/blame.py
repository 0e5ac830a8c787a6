"""Blame: whether a trial failed through its plan, or through the machine that ran it.

A plan that takes its processes down twice is suspected. Before that counts, a plan that was
measured on the same kind of nodes runs once more: if it fails in the same way, the machine is to
blame, no plan counts as failed, and the sweep ends so that it can resume elsewhere.
"""

from __future__ import annotations

from orchestrator.core.events import TrialEnded, TrialStarted
from orchestrator.core.failures import FailureDecision, is_loss_of_processes, is_machine_failure
from orchestrator.core.instructions import Open
from orchestrator.core.reasons import ChecksMachine, MachineFailed
from orchestrator.core.records import Record
from orchestrator.core.step import Step
from search_spaces.trial import Crashed, Measured, WorkersFailed

MAX_MACHINE_FAILURES = 3  # in a row, over all plans, before the sweep ends
_PAUSE_SECONDS = 5.0  # before the next start after a failed one, times the failures in a row


def conclude_trial(
    step: Step,
    trial: TrialStarted,
    record: Record,
    decision: FailureDecision,
    waited_seconds: float | None = None,
) -> None:
    """Stores the result of a trial, or retries its plan, or suspects it until the machine is known.

    Args:
        step: The step to add to.
        trial: The trial.
        record: Its result.
        decision: What follows from its outcome, if the machine works.
        waited_seconds: As in `TrialEnded`.
    """
    outcome = record.outcome
    if is_loss_of_processes(outcome) and isinstance(trial.reason, ChecksMachine):
        _blame_machine(step, trial, outcome)
        return
    if is_machine_failure(outcome):
        _count_machine_failure(step)
        if step.state.machine_failures >= MAX_MACHINE_FAILURES:
            _blame_machine(step, trial, outcome)
            return
    else:
        step.change(machine_failures=0)
    checkable = _can_check(step, trial)
    if decision.retry or (is_machine_failure(outcome) and not checkable):
        assert isinstance(outcome, Crashed)
        step.interrupt(trial, WorkersFailed(outcome=outcome))
        return
    if is_loss_of_processes(outcome) and checkable:
        ended = TrialEnded(record=record, at=step.now, waited_seconds=waited_seconds)
        step.change(suspects=(*step.state.suspects, ended))
        return
    step.store(record, waited_seconds)
    if isinstance(trial.reason, ChecksMachine):
        _blame_suspects(step, trial.plan.accelerator)


def next_check(step: Step) -> Open | None:
    """Returns the next trial that checks the machine: of a measured plan, for the first suspect.

    One at a time on each kind of nodes; None if none is due.
    """
    checked = {
        trial.plan.accelerator
        for trial in step.state.sweep.running
        if isinstance(trial.reason, ChecksMachine)
    }
    for suspect in step.state.suspects:
        known = _last_measured(step, suspect.record.plan.accelerator)
        if known is not None and known.plan.accelerator not in checked:
            reason = ChecksMachine(trial=known.number, suspect=suspect.record.number)
            return Open(plan=known.plan, reason=reason)
    return None


def _blame_suspects(step: Step, accelerator: str) -> None:
    suspects = step.state.suspects
    blamed = [one for one in suspects if one.record.plan.accelerator == accelerator]
    step.change(suspects=tuple(one for one in suspects if one not in blamed))
    for suspect in blamed:
        step.store(suspect.record, suspect.waited_seconds)


def _can_check(step: Step, trial: TrialStarted) -> bool:
    if trial.validation or trial.is_repeat:
        return False
    return _last_measured(step, trial.plan.accelerator) is not None


def _last_measured(step: Step, accelerator: str) -> Record | None:
    return next(
        (
            record
            for record in reversed(step.state.sweep.records)
            if isinstance(record.outcome, Measured) and record.plan.accelerator == accelerator
        ),
        None,
    )


def _count_machine_failure(step: Step) -> None:
    failures = step.state.machine_failures + 1
    step.change(machine_failures=failures, paused_until=step.now + failures * _PAUSE_SECONDS)


def _blame_machine(step: Step, trial: TrialStarted, outcome: Crashed) -> None:
    """Ends the search: other trials that run may end, and no plan is blamed."""
    step.change(stop_reason=MachineFailed(cause=outcome.cause, error=outcome.detail))
    waiting = tuple(step.state.pending.values())
    step.change(pending={}, out_of_room_since={})
    for closed in (trial, *waiting):
        step.close(closed, WorkersFailed(outcome=outcome))
    step.close_suspects()
