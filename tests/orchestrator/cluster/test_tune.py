"""Worker groups under Ray Tune, with runners that train nothing: trials, messages and losses."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import ray
from ray.actor import ActorHandle

from orchestrator.cli.exit_codes import ExitCode, exit_code_after
from orchestrator.cluster.channels import GroupQueues
from orchestrator.cluster.loop import SILENT_SECONDS, GroupRunner, TuneCluster, run_groups
from orchestrator.cluster.runtime import configure_ray
from orchestrator.cluster.worker_group import GroupFailed, WarmGroup, WorkerGroup
from orchestrator.controller import steady_clock
from orchestrator.core.events import Noted, SweepEnded, TrialEnded, TrialStarted
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.notes import Message
from orchestrator.core.placement import Node, Processes, Shortfall
from orchestrator.core.reasons import Retry
from orchestrator.core.records import Record
from search_spaces.errors import ClusterError
from search_spaces.trial import Cancelled, Crashed, Measured, QueuesLost, Stopped, WorkersFailed
from tests.orchestrator.controller.sweeps import Sweep, make_nodes
from tests.orchestrator.records import make_plan, make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured

GROUPS, TRIALS = 3, 11
SHORT_SILENCE = 20.0  # seconds; more than a busy machine takes for a beat


class Group(WarmGroup):
    """Measures nothing, and says which process ran a trial, and where."""

    def __init__(self, queues: ActorHandle) -> None:
        super().__init__()
        self.queues = queues
        self.trials = 0

    def run(self, run: Run) -> TrialFinished:
        self.trials += 1
        began = time.time()
        self.act()
        assert run.placement is not None
        where = "".join(run.placement.node_of_rank)
        return TrialFinished(
            group=run.group,
            number=run.request.number,
            validation=run.request.validation,
            outcome=make_measured(),
            fingerprint=CPU_FINGERPRINT,
            started_at=began,
            ended_at=time.time(),
            faults=(f"{run.request.number} {os.getpid()} {where} {run.fresh}",),
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
class Ran:
    """A trial as its group tells of it."""

    process: str
    nodes: str
    fresh: bool


@dataclass
class Standing:
    """Nodes that stay up, with room for two ranks each; like a connection, they do not pickle."""

    names: str
    lock: Any = field(default_factory=threading.Lock)

    def up(self) -> tuple[Node, ...]:
        return tuple(make_nodes(*self.names))

    def request_capacity(self, needs: Sequence[Shortfall]) -> None:
        assert not any(need.bundles for need in needs)


def make_sweep(
    folder: Path, nodes: Any, groups: int, silent_seconds: float = SILENT_SECONDS, **sections: Any
) -> Sweep:
    """A sweep on groups under Ray Tune; `nodes` stand for the cluster's."""
    base: dict[str, Any] = {
        "study": {"folder": str(folder), "sampler": "random"},
        "budget": {"trials": TRIALS, "minutes": 10, "trial_seconds": 60},
    }
    cluster: Any = TuneCluster(nodes, silent_seconds)
    clock: Any = steady_clock()
    return Sweep(make_spec(**{**base, **sections}), cluster, groups, clock=clock)


def run(sweep: Sweep, runner: type[GroupRunner]) -> None:
    cluster: Any = sweep.cluster
    run_groups(sweep.controller, cluster, sweep.groups, runner)


def trials_of(sweep: Sweep) -> list[TrialStarted]:
    return [event for event in sweep.events(TrialStarted) if not event.validation]


def records_of(sweep: Sweep) -> dict[int, Record]:
    ended = [event.record for event in sweep.events(TrialEnded)]
    return {record.number: record for record in ended if not record.validation}


def ran(sweep: Sweep) -> dict[int, Ran]:
    """Returns what groups say of trials, by number; of a validation instead of its trial."""
    notes = [event.note for event in sweep.events(Noted)]
    texts = [note.text.split() for note in notes if isinstance(note, Message)]
    return {int(number): Ran(pid, where, fresh == "True") for number, pid, where, fresh in texts}


def assert_lost(sweep: Sweep, count: int, through: type = WorkersFailed) -> None:
    """Asserts how many trials lost their groups, and that each was run again and measured."""
    records = records_of(sweep)
    lost = [number for number, record in records.items() if isinstance(record.outcome, Cancelled)]
    assert len(lost) == count
    for number in lost:
        cause = records[number].outcome.cause
        assert isinstance(cause, through)
        (again,) = [trial for trial in trials_of(sweep) if trial.retry_of == number]
        assert again.reason == Retry(trial=number, cause=cause)
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


@pytest.fixture(scope="module")
def sweep(left: object, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    made = make_sweep(
        tmp_path_factory.mktemp("study"),
        Standing("abc"),
        GROUPS,
        SHORT_SILENCE,
        validation={"enabled": True, "repeats": 0},
    )
    run(made, runner_of(Dying))
    return made


def test_every_trial_ends_once(sweep: Sweep) -> None:
    started = Counter((event.number, event.validation) for event in sweep.events(TrialStarted))
    ended = [event.record for event in sweep.events(TrialEnded)]

    assert started == Counter((record.number, record.validation) for record in ended)
    assert set(started.values()) == {1}
    assert not sweep.state.running
    assert sweep.state.ended is not None


def test_groups_that_die_or_hang_cost_their_trials_which_are_retried(sweep: Sweep) -> None:
    assert_lost(sweep, 2)


def test_groups_outlive_their_trials(sweep: Sweep) -> None:
    """There are at most two more processes than groups: lost ones were replaced."""
    processes = {each.process for each in ran(sweep).values()}
    most = max(len(state.running) for _, state in sweep.recorder.heard)

    assert most == GROUPS
    assert 1 < len(processes) <= GROUPS + 2
    assert GROUPS <= sweep.controller.state.groups_started <= GROUPS + 2


def test_a_trial_that_waits_for_others_runs_when_they_have_ended(sweep: Sweep) -> None:
    (validation,) = sweep.state.validations
    beside = [
        state.running
        for event, state in sweep.recorder.heard
        if isinstance(event, TrialStarted) and event.validation
    ]

    assert [[trial.number for trial in running] for running in beside] == [[validation.number]]
    assert isinstance(validation.outcome, Measured)
    assert ran(sweep)[validation.number].fresh


class Treacherous(Group):
    """Kills the queues in the middle of one trial."""

    def act(self) -> None:
        if self.trials == 2 and is_first("killed"):
            ray.kill(self.queues)
            time.sleep(600)  # it is ended


@pytest.mark.thorough
def test_trials_go_on_when_what_passes_them_to_groups_dies(left: object, tmp_path: Path) -> None:
    ours = make_sweep(tmp_path, Standing("a"), 1, SHORT_SILENCE)

    run(ours, runner_of(Treacherous))

    assert_lost(ours, 1, QueuesLost)
    assert len({each.process for each in ran(ours).values()}) == 2


class Doomed(Group):
    """Kills the queues in every trial."""

    def act(self) -> None:
        ray.kill(self.queues)
        time.sleep(600)
        raise AssertionError


@pytest.mark.thorough
def test_what_is_lost_time_and_again_is_given_up(left: object, tmp_path: Path) -> None:
    ours = make_sweep(tmp_path, Standing("a"), 1, SHORT_SILENCE)

    with pytest.raises(ClusterError, match="died or hung 3 times"):
        run(ours, runner_of(Doomed))

    records = records_of(ours).values()
    assert len({record.plan for record in records}) == 1  # which is not blamed
    first, again, last = [record.outcome for record in records]
    assert first == again == Cancelled(cause=QueuesLost())
    assert isinstance(last, Cancelled)
    assert isinstance(last.cause, Stopped)
    assert not ours.state.running
    assert not ours.study.interrupted()
    assert len(ours.events(SweepEnded)) == 1


class Failing(GroupRunner):
    """Raises in its first trial."""

    def step(self) -> dict[str, Any]:
        raise RuntimeError


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune finds no room on the driver's disk for the error of a group."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "error.pkl")

    monkeypatch.setattr("ray.tune.experiment.trial.Trial.handle_error", full)


@pytest.mark.thorough
@pytest.mark.usefixtures("left", "no_room")
def test_a_disk_that_does_not_take_what_tune_writes_is_no_bug_of_ours(tmp_path: Path) -> None:
    ours = make_sweep(tmp_path, Standing("a"), 1)

    with pytest.raises(OSError, match=r"error\.pkl") as caught:
        run(ours, Failing)

    assert exit_code_after(caught.value) == ExitCode.TRY_AGAIN
    assert not records_of(ours)


@pytest.mark.thorough
def test_workers_that_do_not_come_up_are_no_fault_of_the_plan(
    left: object,
) -> None:
    spec = make_spec(cluster={"start_minutes": 0.001})
    processes = Processes.of(make_plan(), "cpu")

    with pytest.raises(GroupFailed) as lost:
        WorkerGroup(spec, processes, "cpu", ".")

    outcome = lost.value.outcome
    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.phase) == ("start_failed", "starting")
    assert "starting did not finish within" in outcome.detail
    # what waits for room would take it once there is some
    assert not any("_fit" in thread.name for thread in threading.enumerate())


def test_a_group_that_is_given_up_is_killed_even_if_it_has_yet_to_start() -> None:
    queues, runner = GroupQueues(), object()

    async def silent() -> list[object]:
        await queues.expire("late")
        for group in ("late", "other"):
            await queues.beat(group, runner if group == "late" else object())
        found, _ = await queues.silent_runners(60.0)
        return found

    assert asyncio.run(silent()) == [runner]


def test_a_group_that_is_given_up_is_not_started(left: object) -> None:
    cluster = TuneCluster(cast("Any", Standing("a")))
    try:
        for group in ("late", "other"):
            cluster.start_group(group)

        cluster.kill("late")

        assert list(cluster.starting) == ["other"]
    finally:
        cluster.close()
