"""A worker in a process of its own, without Ray: kept while it serves, replaced when it must be.

So a GPU can be measured where Ray is not installed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from orchestrator.cluster.runtime import WORKER_ENVIRONMENT
from orchestrator.core.failures import GroupFailure, failure_decision, outcome_of_group_failure
from orchestrator.host import package_versions
from search_spaces.errors import ClusterError
from search_spaces.plan import Plan
from search_spaces.settings.render import Environment, render_environment
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Fingerprint, Outcome, TimedOut, TrialRequest

_START_SECONDS, _STOP_SECONDS = 300.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial's outcome, the worker that ran it, and seconds since the epoch."""

    outcome: Outcome
    fingerprint: Fingerprint
    started_at: float
    ended_at: float


class LoneWorker:
    """Runs trials of one rank one after the other, in one process for as long as it serves."""

    def __init__(self) -> None:
        """Starts without a process."""
        self._child: _Child | None = None

    def measure(self, spec: SweepSpec, plan: Plan) -> Trial:
        """Runs one plan as a trial of the specification, on the device that it names.

        Raises:
            ClusterError: If no worker comes up.
        """
        child = self._child_for(spec, render_environment(plan, spec.cluster.device))
        started_at = time.time()
        request = TrialRequest(number=0, plan=plan, spec=spec.for_workers)
        outcome = child.run(request, spec.budget.trial_seconds)
        if failure_decision(outcome).replace:
            self.stop()
        return Trial(
            outcome=outcome,
            fingerprint=child.fingerprint,
            started_at=started_at,
            ended_at=time.time(),
        )

    def stop(self) -> None:
        """Ends the process, so that others have the device to themselves."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _child_for(self, spec: SweepSpec, environment: Environment) -> _Child:
        """The process, replaced if it serves another model or machine, or other variables."""
        wanted = (spec.for_workers.cluster, spec.model, environment)
        if self._child is not None and self._child.serves != wanted:
            self.stop()
        if self._child is None:
            self._child = _Child(spec.for_workers, environment)
            self._child.serves = wanted
        return self._child


class _Child:
    """One process and its pipe. No daemon, since it may have loader processes of its own."""

    serves: object = None

    def __init__(self, spec: SweepSpec, environment: Environment) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        wanted = WORKER_ENVIRONMENT | dict(environment)
        self._process = spawn.Process(target=_serve, args=(spec, theirs, wanted))
        self._process.start()
        theirs.close()  # else the end of the process would not be seen
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self._pipe.poll(_START_SECONDS):
                self.fingerprint: Fingerprint = self._pipe.recv()
                return
        self.end()
        code = self._process.exitcode
        raise ClusterError(f"the worker did not come up (exit code {code}): see what it said above")

    def run(self, request: TrialRequest, deadline_seconds: float) -> Outcome:
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            self._pipe.send(request)
            if self._pipe.poll(deadline_seconds):
                outcome: Outcome = self._pipe.recv()
                return outcome
            return TimedOut(deadline_seconds=deadline_seconds, detail="no end of the trial")
        self._process.join(_STOP_SECONDS)
        detail = f"its process ended with {self._process.exitcode}"
        died = GroupFailure(doing="running the trial", host_memory=False, rank=0, detail=detail)
        return outcome_of_group_failure(died, ())

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError, OSError):
            self._pipe.send(None)
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _serve(spec: SweepSpec, pipe: Connection, environment: dict[str, str]) -> None:
    """Starts a worker, says what it is, and answers each request with an outcome.

    What libraries write to standard output goes to standard error. That the driver's process goes
    away ends this one too.
    """
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ.update(environment)
    from workers.entry import run_trial, warm_up
    from workers.measure.environment import device_properties, environment_of
    from workers.worker import Worker, device_name

    worker = Worker.start(spec)
    warm_up(spec, worker)
    kind = worker.device.type
    fingerprint = Fingerprint(
        device=kind,
        device_name=device_name(worker.device),
        device_memory_bytes=worker.meter.limit_bytes,
        hosts=1,
        python=platform.python_version(),
        versions=package_versions(),
        environment=environment_of(worker.device),
        properties=device_properties(worker.device),
    )
    with contextlib.suppress(EOFError, BrokenPipeError):
        pipe.send(fingerprint)
        while (request := pipe.recv()) is not None:
            pipe.send(run_trial(request, worker))
