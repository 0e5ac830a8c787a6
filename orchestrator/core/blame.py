"""Blame: whether a trial failed because of its plan, or of the machine that ran it.

A plan whose processes died twice is a suspect. Before it counts as failed, a plan that was measured
before runs once more. If that fails too, the machine is to blame: no plan counts as failed, and the
sweep ends, so that it can resume elsewhere.
"""

from dataclasses import replace

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
    """Stores a result, retries its plan, or holds it back until the machine is checked.

    Args:
        step: The step to add to.
        trial: The trial.
        record: Its result.
        decision: Consequences of its outcome, if the machine works.
        waited_seconds: As in `TrialEnded`.
    """
    outcome = record.outcome
    if is_loss_of_processes(outcome) and isinstance(trial.reason, ChecksMachine):
        _blame_machine(step, trial, outcome)
        return
    if is_machine_failure(outcome):
        failures = step.state.machine_failures + 1
        until = step.now + failures * _PAUSE_SECONDS
        step.state = replace(step.state, machine_failures=failures, paused_until=until)
        if failures >= MAX_MACHINE_FAILURES:
            _blame_machine(step, trial, outcome)
            return
    else:
        step.state = replace(step.state, machine_failures=0)
    checkable = not (trial.validation or trial.is_repeat) and last_measured(step) is not None
    if decision.retry or (is_machine_failure(outcome) and not checkable):
        assert isinstance(outcome, Crashed)
        step.interrupt(trial, WorkersFailed(outcome=outcome))
        return
    if is_loss_of_processes(outcome) and checkable:
        ended = TrialEnded(record=record, at=step.now, waited_seconds=waited_seconds)
        step.state = replace(step.state, suspects=(*step.state.suspects, ended))
        return
    step.store(record, waited_seconds)
    if isinstance(trial.reason, ChecksMachine):  # it works, so the suspects are to blame
        suspects, step.state = step.state.suspects, replace(step.state, suspects=())
        for suspect in suspects:
            step.store(suspect.record, suspect.waited_seconds)


def next_check(step: Step) -> Open | None:
    """Returns the trial of a measured plan that checks the machine; None if none is due."""
    suspects, known = step.state.suspects, last_measured(step)
    running = any(isinstance(trial.reason, ChecksMachine) for trial in step.state.sweep.running)
    if not suspects or known is None or running:
        return None
    reason = ChecksMachine(trial=known.number, suspect=suspects[0].record.number)
    return Open(plan=known.plan, reason=reason)


def last_measured(step: Step) -> Record | None:
    """Returns the last trial that was measured; None if there is none."""
    records = reversed(step.state.sweep.records)
    return next((record for record in records if isinstance(record.outcome, Measured)), None)


def _blame_machine(step: Step, trial: TrialStarted, outcome: Crashed) -> None:
    """Ends the search without blaming a plan; trials that run may finish."""
    step.state = replace(
        step.state, stop_reason=MachineFailed(cause=outcome.cause, error=outcome.detail)
    )
    waiting = step.state.pending
    step.state = replace(step.state, pending=None, out_of_room_since=None)
    for closed in filter(None, (trial, waiting)):
        step.close(closed, WorkersFailed(outcome=outcome))
    step.close_suspects()
