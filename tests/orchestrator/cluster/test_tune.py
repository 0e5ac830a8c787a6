"""Worker groups under Ray Tune, with runners that train nothing: trials, messages and losses."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import ray
from ray.actor import ActorHandle

from orchestrator.cluster.runtime import configure_ray
from orchestrator.cluster.tune import GroupRunner, TuneCluster, run_groups
from orchestrator.cluster.worker_group import GroupFailed, WarmGroup, WorkerGroup
from orchestrator.controller import steady_clock
from orchestrator.core.events import SweepEnded, TrialEnded, TrialStarted
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.placement import Node, Shortfall
from orchestrator.core.reasons import Retry
from orchestrator.core.records import Record
from search_spaces.errors import MachineError
from search_spaces.trial import (
    Cancelled,
    Crashed,
    Measured,
    Stopped,
    TrialRequest,
    WorkersFailed,
)
from tests.orchestrator.controller.sweeps import Sweep, make_nodes
from tests.orchestrator.records import make_plan, make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured

pytestmark = pytest.mark.thorough

TRIALS = 11
SHORT_SILENCE = 60.0  # seconds; more than a busy machine takes for a beat


class Group(WarmGroup):
    """Measures nothing, and says which process ran a trial."""

    def __init__(self, queues: ActorHandle) -> None:
        super().__init__(lambda _: None)
        self.queues = queues
        self.trials = 0

    def run(self, run: Run) -> TrialFinished:
        self.trials += 1
        began = time.time()
        self.act()
        return TrialFinished(
            group=run.group,
            number=run.request.number,
            validation=run.request.validation,
            outcome=make_measured(),
            fingerprint=CPU_FINGERPRINT,
            started_at=began,
            ended_at=time.time(),
            faults=(f"{os.getpid()}",),
        )

    def act(self) -> None:
        """Does what a test wants in the middle of a trial."""


def is_first(what: str) -> bool:
    """Returns True the first time that a process of this Ray asks."""
    try:
        Path(os.environ["LEFT"], what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass
class Standing:
    """Nodes that stay up, with room for two ranks each; like a connection, they do not pickle."""

    names: str
    lock: Any = field(default_factory=threading.Lock)

    def up(self) -> tuple[Node, ...]:
        return tuple(make_nodes(*self.names))

    def request_capacity(self, need: Shortfall) -> None:
        assert not need.bundles


def make_sweep(folder: Path, nodes: str = "a") -> Sweep:
    """A sweep under Ray Tune, of as many groups as there are nodes."""
    spec = make_spec(
        study={"folder": str(folder), "sampler": "random"},
        budget={"trials": TRIALS, "minutes": 60, "trial_seconds": 600},
    )
    cluster: Any = TuneCluster(cast("Any", Standing(nodes)), SHORT_SILENCE)
    clock: Any = steady_clock()
    return Sweep(spec, cluster, len(nodes), clock=clock)


def run(sweep: Sweep, runner: type[GroupRunner]) -> None:
    cluster: Any = sweep.cluster
    run_groups(sweep.controller, cluster, sweep.groups, runner)


def records_of(sweep: Sweep) -> dict[int, Record]:
    return {event.record.number: event.record for event in sweep.events(TrialEnded)}


def assert_lost(sweep: Sweep, count: int, through: type = WorkersFailed) -> None:
    """Asserts how many trials lost their groups, and that each was run again and measured."""
    records = records_of(sweep)
    lost = [number for number, record in records.items() if isinstance(record.outcome, Cancelled)]
    assert len(lost) == count
    for number in lost:
        cause = records[number].outcome.cause
        assert isinstance(cause, through)
        retry = Retry(trial=number, cause=cause)
        (again,) = [trial for trial in sweep.events(TrialStarted) if trial.reason == retry]
        assert again.plan == records[number].plan
    kept = [number for number in records if number not in lost]
    assert [record.number for record in sweep.study.records()] == sorted(kept)
    assert len(kept) == TRIALS
    assert all(isinstance(records[number].outcome, Measured) for number in kept)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Starts Ray; returns a folder that all its processes find in LEFT."""
    folder = tmp_path_factory.mktemp("left")
    configure_ray()
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=2**27,
        log_to_driver=False,
        runtime_env={"env_vars": {"LEFT": str(folder)}},
    )
    try:
        yield folder
    finally:
        ray.shutdown()


class Dying(Group):
    """One group dies in its second trial, another hangs."""

    def act(self) -> None:
        if self.trials == 2 and is_first("died"):
            os._exit(1)
        if self.trials == 2 and is_first("hung"):
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.3)  # no group gets all of them


def runner_of(group: Callable[[ActorHandle], Group]) -> type[GroupRunner]:
    class Runner(GroupRunner):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config)
            self._group = group(self._queues)

    return Runner


def test_groups_that_die_or_hang_cost_their_trials_which_are_retried(
    left: object, tmp_path: Path
) -> None:
    sweep = make_sweep(tmp_path, "abc")

    run(sweep, runner_of(Dying))

    assert_lost(sweep, 2)
    started = Counter(event.number for event in sweep.events(TrialStarted))
    assert started == Counter(event.record.number for event in sweep.events(TrialEnded))
    assert set(started.values()) == {1}
    assert not sweep.state.running
    assert sweep.state.ended is not None


class Doomed(Group):
    """Kills the queues in its trial."""

    def act(self) -> None:
        ray.kill(self.queues)
        time.sleep(600)
        raise AssertionError


def test_lost_queues_end_the_sweep_and_blame_no_plan(left: object, tmp_path: Path) -> None:
    ours = make_sweep(tmp_path)

    with pytest.raises(MachineError, match="died or hung"):
        run(ours, runner_of(Doomed))

    (record,) = records_of(ours).values()
    assert isinstance(record.outcome, Cancelled)
    assert isinstance(record.outcome.cause, Stopped)
    assert not ours.state.running
    assert not ours.study.interrupted()
    assert len(ours.events(SweepEnded)) == 1


def test_workers_that_do_not_come_up_are_no_fault_of_the_plan(
    left: object,
) -> None:
    spec = make_spec(cluster={"start_minutes": 0.001})
    request = TrialRequest(number=0, plan=make_plan(), spec=spec)
    run = Run(group="a", request=request, device="cpu", folder=".", deadline_seconds=60.0)

    with pytest.raises(GroupFailed) as lost:
        WorkerGroup(run, lambda _: None)

    outcome = lost.value.outcome
    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.phase) == ("start_failed", "starting")
    assert "starting did not finish within" in outcome.detail
    # what waits for room would take it once there is some
    assert not any("_fit" in thread.name for thread in threading.enumerate())
