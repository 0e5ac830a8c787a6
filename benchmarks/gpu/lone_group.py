"""A worker in a process of its own, without Ray: kept while it serves, replaced when it must be.

It does for one rank what `WarmGroup` of `orchestrator.cluster.worker_group` does for many, by the
same decisions (`orchestrator.core`), so that a GPU can be measured where Ray is not installed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.gpu.environment import variables
from benchmarks.gpu.serving import serve
from orchestrator.cluster.runtime import WORKER_ENVIRONMENT
from orchestrator.core.failures import GroupFailure, failure_decision, outcome_of_group_failure
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.placement import Processes, reason_to_replace
from orchestrator.host import gpu_bytes_in_use, oom_kills, wait_for_release
from search_spaces.errors import ClusterError
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint, Outcome, TimedOut, TrialRequest

START_SECONDS = 300.0
_STOP_SECONDS = 10.0
_RELEASE_SECONDS = 20.0  # for a driver to have a dead process's memory back


class LoneGroup:
    """Runs trials of one rank one after the other, in one process for as long as it serves.

    `started` counts its processes. One worker is kept for one model, unless it is `mixed`.
    """

    def __init__(self, *, mixed: bool = False) -> None:
        """Starts without a process.

        Args:
            mixed: Whether trials of several models follow each other in one process.
        """
        self.started = 0
        self._mixed = mixed
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process; None while there is none."""
        return self._child.pid if self._child else None

    def here(self, spec: SweepSpec) -> ClusterFacts:
        """Facts of this machine, as the worker of a specification tells; starts one if need be."""
        return self._child_for(spec).here

    def seen(self, spec: SweepSpec) -> Fingerprint:
        """Hardware and software of the worker, which is started if need be."""
        return self._child_for(spec).seen

    def run(self, run: Run) -> TrialFinished:
        """Runs a trial in the process that it needs, which is started if it is not there.

        Raises:
            ClusterError: If no worker comes up.
        """
        started_at, request = time.time(), run.request
        needed = Processes.of(request.plan, run.device)
        child = self._child_for(request.spec, needed, fresh=run.fresh)
        ready_at = time.time()
        outcome = child.run(request, run.deadline_seconds)
        faults = self.stop() if failure_decision(outcome).replace else ()
        return TrialFinished(
            group=run.group,
            number=request.number,
            validation=request.validation,
            outcome=outcome,
            fingerprint=child.seen,
            started_at=started_at,
            ended_at=time.time(),
            workers_seconds=ready_at - started_at,
            workers_ended=self._child is None,
            faults=faults,
        )

    def measure(self, spec: SweepSpec, plan: Plan, *, number: int = 0) -> TrialFinished:
        """Runs one plan as a trial of the specification, on the device that it names."""
        return self.run(
            Run(
                group="alone",
                request=TrialRequest(number=number, plan=plan, spec=spec.for_workers),
                device="cuda" if spec.cluster.device == "cuda" else "cpu",
                deadline_seconds=spec.budget.trial_seconds,
                folder=str(Path.cwd()),
            )
        )

    def stop(self) -> tuple[str, ...]:
        """Ends the process; what it left on the device, a sentence each."""
        child, self._child = self._child, None
        return () if child is None else child.end()

    def _child_for(
        self, spec: SweepSpec, needed: Processes | None = None, *, fresh: bool = False
    ) -> _Child:
        """The process, started if it is not there or cannot serve; without `needed`, any can."""
        there = self._child
        if there is not None:
            change = needed and reason_to_replace(needed, there.processes, fresh=fresh)
            if change or not there.alive or not self._serves(there, spec):
                self.stop()
        if self._child is None:
            self.started += 1
            self._child = _Child(spec, needed or _AT_REST)
        return self._child

    def _serves(self, child: _Child, spec: SweepSpec) -> bool:
        """A worker has one memory limit, and unless it is mixed one model."""
        if spec.for_workers.cluster != child.spec.cluster:
            return False
        return self._mixed or spec.model == child.spec.model


_AT_REST = Processes(world_size=1, environment=())  # of plans whose allocator is the usual one


class _Child:
    """One process and its pipe. No daemon, since it may have loader processes of its own."""

    def __init__(self, spec: SweepSpec, processes: Processes) -> None:
        self.spec, self.processes = spec.for_workers, processes
        self._before = gpu_bytes_in_use()
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process: BaseProcess = multiprocessing.get_context("spawn").Process(
            target=serve, args=(self.spec, theirs)
        )
        with variables(WORKER_ENVIRONMENT | dict(processes.environment)):
            self._process.start()
        theirs.close()  # else the end of the process would not be seen
        self.seen, self.here = self._hello(self._pipe)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def _hello(self, pipe: Connection) -> tuple[Fingerprint, ClusterFacts]:
        with contextlib.suppress(EOFError, ConnectionResetError):
            if pipe.poll(START_SECONDS):
                seen, here = pipe.recv()
                return seen, here
        self.end()
        code = self._process.exitcode
        raise ClusterError(f"the worker did not come up (exit code {code}): see what it said above")

    def run(self, request: TrialRequest, deadline_seconds: float) -> Outcome:
        kills = oom_kills()
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            self._pipe.send(request)
            if self._pipe.poll(deadline_seconds):
                outcome: Outcome = self._pipe.recv()
                return outcome
            return TimedOut(deadline_seconds=deadline_seconds, detail="no end of the trial")
        self._process.join(_STOP_SECONDS)
        detail = f"its process ended with {self._process.exitcode}"
        killed = oom_kills() > kills
        death = GroupFailure(doing="running the trial", host_memory=killed, rank=0, detail=detail)
        return outcome_of_group_failure(death, ())

    def end(self) -> tuple[str, ...]:
        with contextlib.suppress(BrokenPipeError, OSError):
            self._pipe.send(None)
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
        return wait_for_release(self._before, _RELEASE_SECONDS)
