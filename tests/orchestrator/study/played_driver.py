"""One driver of a sweep whose trials are played: database, lock, controller and logs are real.

`python -m tests.orchestrator.study.played_driver FOLDER` writes a mark to its standard output as it
knows that a trial, or the sweep, has ended.
"""

import os
import sys
import time
from pathlib import Path

from orchestrator.controller import Controller
from orchestrator.core.events import Event
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.placement import CapacityRequest
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.journal import FILE, Journal
from orchestrator.study.locks import DriverLock, exclusive_driver
from orchestrator.study.study import Study, check_study
from orchestrator.workspace import save_spec
from search_spaces.facts import Provenance, Understanding, planned_cluster
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.controller.sweeps import CLUSTER, PlayedCluster, make_nodes
from tests.orchestrator.records import LLAMA, make_space
from tests.orchestrator.study.values import NAME, rate, study_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured


def spec_of(folder: Path) -> SweepSpec:
    """Returns a sweep of four plans and a validation, with its study in a folder."""
    space = {"micro_batch": [1, 2, 4, 8], "checkpoint_ratio": [0.0], "attention": ["sdpa"]}
    return study_spec(
        folder / "runs",
        "random",
        study={"storage": f"sqlite:///{folder}/database/study.db", "wait_minutes": 0.0},
        space={**space, "batching": ["padded"], "zero_stage": [0]},
        validation={"enabled": True, "repeats": 0, "tries": 1},
    )


def _drive(folder: Path) -> None:
    spec = spec_of(folder)
    check_study(spec, NAME)
    save_spec(spec, NAME)
    with exclusive_driver(spec, NAME) as lock:
        _sweep(spec, lock)


class _Marks(AbstractCallback):
    """Writes a mark for each event."""

    def on_event(self, event: Event, state: SweepState) -> None:
        os.write(1, b"MARK " + type(event).__name__.encode())

    def close(self) -> None:
        """Does nothing."""


def _sweep(spec: SweepSpec, lock: DriverLock) -> None:
    study = Study(spec, NAME, make_space(spec), lock=lock)
    study.keep_understanding(
        Understanding(data=None, model=LLAMA, cluster=planned_cluster(spec, 2), ranks=2)
    )
    study.keep_provenance(Provenance(at=0.0, user=str(os.getpid()), is_job=False, code=None))
    journal = Journal(Path(spec.study.folder, NAME, FILE), sys.stderr.write)
    cluster = PlayedCluster(make_nodes("a"))
    started = study.driver_started(CLUSTER, CapacityRequest(groups=1, ranks=2), 1, time.time())
    controller = Controller(started, study, cluster, (_Marks(),), journal=journal)
    while not controller.state.ended:
        controller.step()
        while cluster.runs:
            controller.put(_outcome(cluster.runs.pop(0)))
            controller.step()
    if controller.error is not None:
        raise controller.error


def _outcome(run: Run) -> TrialFinished:
    request = run.request
    return TrialFinished(
        group=run.group,
        number=request.number,
        validation=request.validation,
        outcome=make_measured(rate(request.plan)),
        fingerprint=CPU_FINGERPRINT,
        started_at=time.time(),
        ended_at=time.time(),
        workers_ended=False,
        at=0.0,
    )


if __name__ == "__main__":
    _drive(Path(sys.argv[1]))
