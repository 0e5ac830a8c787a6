"""Drivers that end at failpoints: `python -m tests.orchestrator.study.killed_drivers`.

A line of its standard input names a folder and failpoints. It forks a driver that runs the sweep of
that folder, and answers with the exit code, which is negative after a signal. Only trials are
played: the database, the lock, the controller, the spool and the logs are those of a real sweep.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.cli.exit_codes import exit_code_after
from orchestrator.controller import Controller
from orchestrator.core.controller_state import Phase
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.placement import CapacityRequest
from orchestrator.study.locks import DriverLock, Lease, exclusive_driver
from orchestrator.study.study import Study, check_study
from orchestrator.tracking.decisions import DecisionLog, decisions_file
from orchestrator.tracking.events import EventFile, LineFile, events_file
from orchestrator.workspace import save_spec
from search_spaces.errors import UserError
from search_spaces.facts import Provenance, Understanding, planned_cluster
from search_spaces.spec.failpoints import FOLDER_VARIABLE, VARIABLE, arm
from search_spaces.spec.schema import SweepSpec
from tests.orchestrator.controller.sweeps import CLUSTER, PlayedCluster, make_nodes
from tests.orchestrator.records import LLAMA, make_space
from tests.orchestrator.study.values import NAME, rate, study_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured
from tests.rigs.judge import Line

ROOT = Path(__file__).parents[3]
PLANS = 4
AWAY_AT = 2  # the result that the first driver cannot store, since the database is away
DATABASE, AWAY, PASSES, JOURNAL = "database/study.db", "study.db.away", "passes", "journal.jsonl"
LEASE = Lease(beat_seconds=0.02, silent_seconds=10.0)


def spec_of(folder: Path) -> SweepSpec:
    """Returns a sweep of four plans and a validation, with its study in a folder."""
    space = {"micro_batch": [1, 2, 4, 8], "checkpoint_ratio": [0.0], "attention": ["sdpa"]}
    return study_spec(
        folder / "runs",
        "random",
        study={"storage": f"sqlite:///{folder}/{DATABASE}", "wait_minutes": 0.0},
        space={**space, "batching": ["padded"], "zero_stage": [0]},
        validation={"enabled": True, "repeats": 0, "tries": 1},
    )


@contextmanager
def forge() -> Iterator[subprocess.Popen[str]]:
    """Starts what forks drivers, which thereby start within milliseconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lives(forge: subprocess.Popen[str], folder: Path, *orders: str) -> int:
    """Runs one driver to its end; returns its exit code. The database is then where it was."""
    (folder / PASSES).mkdir(exist_ok=True)
    assert forge.stdin is not None
    assert forge.stdout is not None
    forge.stdin.write(f"{json.dumps([str(folder), *orders])}\n")
    forge.stdin.flush()
    code = int(forge.stdout.readline())
    if (folder / AWAY).exists():
        (folder / AWAY).rename(folder / DATABASE)
    return code


def journal_of(folder: Path) -> list[Line]:
    """Returns what the played workers have measured, by all drivers."""
    file = folder / JOURNAL
    return [Line(**json.loads(line)) for line in file.read_text().splitlines()]


def _drive(folder: Path) -> int:
    spec = spec_of(folder)
    try:
        check_study(spec, NAME)
        save_spec(spec, NAME)
        with exclusive_driver(spec, NAME, lease=LEASE) as lock:
            _sweep(folder, spec, lock)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return int(exit_code_after(error))
    return 0


def _sweep(folder: Path, spec: SweepSpec, lock: DriverLock) -> None:
    study = Study(spec, NAME, make_space(spec), lock=lock)
    study.keep_understanding(
        Understanding(
            data=None, model=LLAMA, task="causal-lm", cluster=planned_cluster(spec, 2), ranks=2
        )
    )
    study.keep_provenance(Provenance(at=0.0, user=str(os.getpid()), is_job=False, code=None))
    log = EventFile(events_file(spec, NAME), sys.stderr.write)
    decisions = DecisionLog(lines=LineFile(decisions_file(spec, NAME), sys.stderr.write))
    cluster = PlayedCluster(make_nodes("a"))
    started = study.driver_started(CLUSTER, CapacityRequest(groups=1, ranks=2), 1, time.time())
    controller = Controller(started, study, cluster, (log,), decided=decisions.write)
    while controller.state.phase is not Phase.DONE:
        controller.tick()
        while cluster.runs:
            controller.receive(_outcome(folder, cluster.runs.pop(0)))
    if controller.error is not None:
        raise controller.error


def _outcome(folder: Path, run: Run) -> TrialFinished:
    """Measures: writes it down as a worker does, before anybody else has the result."""
    request = run.request
    speed = rate(request.plan)
    line = Line(
        number=request.number,
        plan=request.plan.key,
        validation=request.validation,
        samples_per_second=speed,
    )
    with (folder / JOURNAL).open("a") as journal:
        journal.write(json.dumps({name: getattr(line, name) for name in line.__slots__}) + "\n")
    lost = folder / "lost"
    if len(journal_of(folder)) >= AWAY_AT and not lost.exists():
        lost.touch()
        (folder / DATABASE).rename(folder / AWAY)
    return TrialFinished(
        group=run.group,
        number=request.number,
        validation=request.validation,
        outcome=make_measured(speed),
        fingerprint=CPU_FINGERPRINT,
        started_at=time.time(),
        ended_at=time.time(),
        workers_ended=False,
        at=0.0,
    )


def _serve() -> None:
    for line in sys.stdin:
        folder, *orders = json.loads(line)
        child = os.fork()
        if not child:
            arm({FOLDER_VARIABLE: f"{folder}/{PASSES}", VARIABLE: " ".join(orders)})
            code = os.EX_SOFTWARE
            try:
                code = _drive(Path(folder))
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
