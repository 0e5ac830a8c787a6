"""One step of the controller: the state as it changes, and the instructions that follow."""

from dataclasses import replace

from orchestrator.core.controller_state import ControllerState, Group
from orchestrator.core.events import Event, Noted, TrialEnded, TrialStarted
from orchestrator.core.instructions import Abandon, Announce, End, Instruction, Store
from orchestrator.core.notes import Note
from orchestrator.core.reasons import MachineFailed, Retry, StopReason
from orchestrator.core.records import Record, closed_record
from orchestrator.core.state import advance
from search_spaces.trial import Cancelled, Crashed, Interruption, WorkersFailed


class Step:
    """The changes that one input causes. `handle` makes one, and returns what it became."""

    def __init__(self, state: ControllerState, now: float) -> None:
        self.state = state
        self.now = now
        self.instructions: list[Instruction] = []

    def instruct(self, instruction: Instruction) -> None:
        """Adds an instruction."""
        self.instructions.append(instruction)

    def announce(self, event: Event) -> None:
        """Changes the sweep by an event, and tells the callbacks."""
        self._advance(event)
        self.instruct(Announce(event=event))

    def note(self, *notes: Note) -> None:
        """Announces notes for the user."""
        for note in notes:
            self.announce(Noted(note=note, at=self.now))

    def store(self, record: Record, waited_seconds: float | None = None) -> None:
        """Ends a trial or a validation with its result."""
        ended = TrialEnded(record=record, at=self.now, waited_seconds=waited_seconds)
        self._advance(ended)
        self.instruct(Store(ended=ended))

    def interrupt(self, trial: TrialStarted, cause: Interruption) -> None:
        """Closes a trial that ended through no fault of its plan, and runs it again.

        A validation or a repeat that is missing is chosen again anyway.
        """
        if not trial.validation and not trial.is_repeat:
            again = (trial.plan, Retry(trial=trial.number, cause=cause))
            self.state = replace(self.state, retries=(*self.state.retries, again))
        if not isinstance(self.state.stop_reason, MachineFailed):
            self.state = replace(
                self.state, stop_reason=None
            )  # the reason may have counted on this trial
        self.close(trial, cause)

    def close(self, trial: TrialStarted, cause: Interruption) -> None:
        """Closes a trial without a result; its plan is untried again."""
        outcome = Cancelled(cause=cause)
        record = closed_record(trial.number, trial.plan, outcome, trial.reason, at=self.now)
        self.abandon(replace(record, validation=trial.validation))

    def close_suspects(self) -> None:
        """Closes the trials whose plans are suspected, without a result."""
        suspects = self.state.suspects
        self.state = replace(self.state, suspects=())
        for suspect in suspects:
            trial, outcome = self.state.running(suspect.record.number), suspect.record.outcome
            if trial is not None and isinstance(outcome, Crashed):
                self.close(trial, WorkersFailed(outcome=outcome))

    def abandon(self, record: Record) -> None:
        """Ends a trial that has no group any more."""
        ended = TrialEnded(record=record, at=self.now)
        self._advance(ended)
        self.instruct(Abandon(number=record.number, ended=ended))

    def take_back(self, unwritten: Record) -> None:
        """Drops a result that the study could not store."""
        sweep = self.state.sweep
        records, validations = (
            tuple(one for one in kept if one != unwritten)
            for kept in (sweep.records, sweep.validations)
        )
        sweep = replace(sweep, records=records, validations=validations)
        self.state = replace(self.state, sweep=sweep)

    def end(self, reason: StopReason) -> None:
        """Ends the sweep, once."""
        if not self.state.ended:
            self.state = replace(self.state, ended=True)
            self.instruct(End(reason=reason, at=self.now))

    def set_group(self, name: str, group: Group | None) -> None:
        """Changes or adds a group; None: removes it."""
        groups = {other: one for other, one in self.state.groups.items() if other != name}
        groups |= {} if group is None else {name: group}
        self.state = replace(self.state, groups=groups)

    def _advance(self, event: Event) -> None:
        self.state = replace(self.state, sweep=advance(self.state.sweep, event))
        if isinstance(event, TrialEnded) and not event.record.validation:
            self.state = replace(self.state, repeats_done=False)  # other plans may lead now
