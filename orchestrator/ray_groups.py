"""The group of workers that is kept from one trial to the next, and replaced when it must be."""

from __future__ import annotations

import time
from collections.abc import Sequence

from orchestrator.core.endings import may_be_a_lost_node
from orchestrator.core.processes import Processes, reason_to_change
from orchestrator.core.reactions import reaction_to
from orchestrator.mailboxes import Seat
from orchestrator.ray_nodes import gone_among
from orchestrator.ray_train import GroupLost, WorkerGroup
from orchestrator.trials import Assignment, TrialReport
from search_spaces.record import Fingerprint


class KeptGroup:
    """Runs trials one after the other, on one group for as long as it serves."""

    def __init__(self) -> None:
        """Starts without a group: the first trial says how large it must be."""
        self._group: WorkerGroup | None = None

    @property
    def seats(self) -> Sequence[Seat]:
        """Of its workers, if there are any."""
        return self._group.seats if self._group else ()

    def run(self, given: Assignment) -> TrialReport:
        """Runs a trial on the group that it needs, which is started if it is not there."""
        notes: list[str] = []
        started_at = time.time()
        seen: Fingerprint | None = None
        lost: tuple[str, ...] = ()
        ready_at: float | None = None
        try:
            group = self._group_for(given, notes)
            ready_at = time.time()
            seen = group.fingerprint
            outcome = group.run(given.request, given.deadline_seconds)
            if reason := reaction_to(outcome).replace:
                notes.append(f"the worker group is replaced: {reason}")
                self._group = None
                group.stop()
        except GroupLost as ended:
            outcome, self._group = ended.outcome, None
            reason = reaction_to(outcome).replace or "its workers are gone"
            notes += [f"the worker group is replaced: {reason}", *ended.left]
            if may_be_a_lost_node(outcome):
                lost = gone_among(given.doors)
        ended_at = time.time()
        return TrialReport(
            number=given.request.number,
            outcome=outcome,
            fingerprint=seen,
            notes=tuple(notes),
            started_at=started_at,
            ended_at=ended_at,
            lost=lost,
            workers_seconds=(ended_at if ready_at is None else ready_at) - started_at,
        )

    def stop(self) -> None:
        """Lets the group go."""
        if self._group is not None:
            self._group.stop()
            self._group = None

    def _group_for(self, given: Assignment, notes: list[str]) -> WorkerGroup:
        needed = Processes.of(given.request.plan, given.device, given.placement)
        there = self._group
        if there and (reason := reason_to_change(needed, there.processes, fresh=given.fresh)):
            notes.append(f"the worker group is replaced: {reason}")
            self.stop()
        if self._group is None:
            spec = given.request.spec.on(given.request.plan.accelerator)
            self._group = WorkerGroup(spec, needed, given.device, given.folder, given.doors)
        return self._group
