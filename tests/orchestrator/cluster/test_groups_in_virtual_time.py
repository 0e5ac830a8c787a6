"""Groups, their channels and their driver on a played Ray, on which everything fails by seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import TrainingFailedError

from orchestrator.cluster import channels, tune, watchdog, worker_group
from orchestrator.cluster.channels import GroupQueues, WorkerProcess
from orchestrator.cluster.tune import GroupRunner, GroupSearcher, TuneCluster, run_groups
from orchestrator.cluster.worker_group import WarmGroup, WorkerGroup
from orchestrator.core.budget import start_deadline_seconds
from orchestrator.core.inputs import GroupsEnded, StopRequested, TrialFinished
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import Placement
from orchestrator.core.schedule import REPORT_SECONDS
from search_spaces.errors import MachineError
from search_spaces.trial import Measured, Stopped, TrialRequest
from tests.orchestrator.cluster.played_ray import Killed, Process, World, played
from tests.orchestrator.records import make_plan, make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured, make_oom

SPEC = make_spec(cluster={"workers": 2, "memory_gib": 0.5, "start_minutes": 2})
PLACEMENT = Placement((("a", 1), ("b", 1)))
DEADLINE, TRIALS, GROUPS = 60.0, 8, 2
LONGEST = start_deadline_seconds(SPEC) + DEADLINE + REPORT_SECONDS  # until the driver kills a group
CLEANUP = 60.0 + 180.0 * GROUPS  # until the end of a group that was killed is known
LIFE = TRIALS * (LONGEST + CLEANUP)


class Sweep:
    """One driver with its groups: the controller of the cluster that it runs."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.runners: dict[str, Process] = {}
        self.ranks: dict[str, list[Process]] = {}
        self.placements: set[Process] = set()  # runners that hold nodes
        self.groups: dict[str, bool] = {}  # True if dismissed
        self.hurt: set[str] = set()  # groups whose workers have a fault
        self.doomed: set[str] = set()  # those that do not work any more
        self.stuck: set[str] = set()  # those of them that only the driver ends
        self.down: set[str] = set()  # nodes
        self.sent: dict[str, tuple[int, float]] = {}  # trial of each group, and since when
        self.killed: dict[str, float] = {}  # groups, and when
        self.given: list[Any] = []
        self.answers: dict[int, int] = dict.fromkeys(range(TRIALS), 0)
        self.is_stopped = self.is_lost = False
        self.exit_code: int | None = None
        self.state = SimpleNamespace(sweep=SimpleNamespace(ended=None))
        self.put = self.given.append
        modules = played(self.world)
        for module in (channels, tune, watchdog, worker_group):
            for name in modules.keys() & vars(module).keys():
                monkeypatch.setattr(module, name, modules[name])
        self._replace(monkeypatch, folder)

    def _replace(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        def end(code: int) -> None:
            self.exit_code, self.ended_at = code, self.world.now
            raise Killed

        monkeypatch.setattr(watchdog, "end_now", end)
        monkeypatch.setattr(tune, "_SUGGEST_SECONDS", 0.0)
        monkeypatch.setattr(tune, "_run_tune", self.run_tune)
        monkeypatch.setattr(tune, "clean_up_group", self.clean_up)
        monkeypatch.setattr(worker_group, "trainer_of", self.trainer)
        monkeypatch.setattr(worker_group, "session_folder", lambda: folder)
        monkeypatch.setattr(worker_group, "oom_killed", lambda _: False)
        monkeypatch.setattr(worker_group, "end_controllers", lambda: None)
        monkeypatch.setattr(worker_group, "end_worker_processes", self.end_workers)
        monkeypatch.setattr(worker_group, "remove_abandoned_placement_groups", self.free)
        monkeypatch.setattr(
            worker_group,
            "unreachable_nodes",
            lambda addresses: tuple(node for node, _ in addresses if node in self.down),
        )

    # what Ray does

    def run_tune(self, cluster: TuneCluster, most: int, _: type) -> None:
        """Plays Ray Tune: starts groups, passes their results on, notices their deaths."""
        searcher, running = GroupSearcher(cluster), dict[str, tuple[str, list[Any]]]()
        while True:
            tune.AbandonCallback(cluster).on_step_end(0, [])
            config = searcher.suggest(f"tune-{len(self.runners)}") if len(running) < most else None
            if config == GroupSearcher.FINISHED and not running:
                return
            if isinstance(config, dict):
                name, results = config["group"], list[Any]()
                running[name] = f"tune-{len(self.runners)}", results
                self.runners[name] = runner = Process(self.world.driver)
                self.world.start(runner, partial(self.run_group, config, results))
            for name, (trial, results) in tuple(running.items()):
                if results and not results[0].get("done"):
                    searcher.on_trial_result(trial, results[0])
                    results.clear()
                elif results or not self.runners[name].is_alive:
                    searcher.on_trial_complete(trial, error=not results)
                    del running[name]
            self.world.wait(lambda: False, 0.5)

    def run_group(self, config: dict[str, Any], results: list[Any]) -> None:
        runner = GroupRunner.__new__(GroupRunner)
        runner.setup(config)
        while not any(one.get("done") for one in results):
            self.world.wait(lambda: not results)
            results.append(runner.step())
        runner.cleanup()
        self.world.kill(self.world.process)

    def trainer(self, _spec: Any, _processes: Any, _device: str, _folder: str, config: Any) -> Any:
        """Plays a run of Ray Train, which ends when all ranks have left or one died."""
        world, runner, left = self.world, self.world.process, list[int]()
        (name,) = (name for name, process in self.runners.items() if process is runner)

        def fit() -> None:
            self.ranks[name] = [Process(runner, node) for node in ("a", "b")]
            self.placements.add(runner)
            for rank, process in enumerate(self.ranks[name]):
                world.start(process, partial(self.run_rank, name, rank, config["channel"], left))
            ranks = self.ranks[name]
            world.wait(lambda: len(left) == 2 or not all(rank.is_alive for rank in ranks))
            if len(left) < 2:
                world.wait(lambda: False, self.random.uniform(0, 15))
                raise TrainingFailedError("a rank died")
            self.placements.discard(runner)

        return SimpleNamespace(fit=fit)

    def run_rank(self, group: str, rank: int, channel: Any, left: list[int]) -> None:
        """Plays `worker_loop`; a trial's speed is its number."""
        ray, world, random = tune.ray, self.world, self.random
        if world.process.node in self.down:
            self.hurt.add(group)
            world.kill(world.process)
        token = tune.cloudpickle.dumps(SimpleNamespace(process=world.process))
        process = WorkerProcess(worker=token, node=world.process.node, pid=1, started_at=0.0)
        ray.get(channel.register.remote(process))
        world.wait(lambda: False, random.choice([5.0, 9.0, 30.0, 300.0 * ("slow" in group)]))
        ray.get(channel.set_ready.remote(CPU_FINGERPRINT))
        while (request := ray.get(channel.next.remote(rank))) is not None:
            world.wait(lambda: False, random.uniform(1, 40))
            if random.random() < 0.05:  # its peers may wait for it in a collective
                self.hurt.add(group)
                ray.get(channel.announce.remote(rank, make_oom()))
                world.wait(lambda: False, random.choice([1.0, 60.0, inf]))
            if rank == 0:
                ray.get(channel.post.remote(make_measured(1.0 + request.number)))
        left.append(rank)
        world.kill(world.process)

    def end_workers(self, processes: Any) -> tuple[str, ...]:
        for process in processes:
            self.world.kill(tune.cloudpickle.loads(process.worker).process)
        if any(self.runners[one] is self.world.process for one in self.stuck & self.sent.keys()):
            self.world.wait(lambda: False)
        return ()

    def free(self) -> None:
        self.placements -= {one for one in self.placements if one is self.world.process}

    def clean_up(self, processes: Any) -> tuple[str, ...]:
        self.placements = {runner for runner in self.placements if runner.is_alive}
        self.world.wait(lambda: False, self.random.choice([1.0, 150.0, inf]))
        return self.end_workers(processes)

    # faults

    def fail(self, group: str) -> None:
        """Lets something of a group fail."""
        if group not in self.ranks or self.groups.get(group, True):
            return  # it has not started yet, or ends
        runner, rank = self.runners[group], self.random.choice(self.ranks[group])
        self.hurt.add(group)
        match self.random.choice(("dies", "hangs", "node", "group dies", "group hangs", "stuck")):
            case "dies":
                self.world.kill(rank)
            case "hangs":
                rank.hangs = True
            case "node":
                self.down.add(rank.node)
                self.world.after(100.0, partial(self.down.discard, rank.node))
                for name, processes in self.ranks.items():
                    self.hurt.add(name)
                    for process in processes:
                        if process.node == rank.node:
                            self.world.kill(process)
            case "group dies":
                self.doomed.add(group)
                self.world.kill(runner)
            case "group hangs":
                self.doomed.add(group)
                runner.hangs = True
            case "stuck":
                self.doomed.add(group)
                self.stuck.add(group)
                rank.hangs = True

    # what the driver does

    def main(self) -> None:
        """Plays the driver, from its start until its groups have ended."""
        dog = watchdog.Watchdog(75, lambda: None)
        nodes: Any = SimpleNamespace(up=lambda: (), request_capacity=lambda _: None)
        self.cluster = TuneCluster(nodes, alive=dog.alive)
        queues: Any = self.cluster.queues
        if self.random.random() < 0.1:
            self.world.after(self.random.uniform(0, 300), lambda: self.lose(queues.process))
        try:
            run_groups(self, self.cluster, GROUPS)  # type: ignore[arg-type]
        except MachineError:
            assert self.is_lost
        self.world.wait(lambda: False, 30.0)
        dog.stop()

    def lose(self, process: Process) -> None:
        self.is_lost = True
        process.hangs = self.random.random() < 0.5
        if not process.hangs:
            self.world.kill(process)

    def run(self) -> None:
        """Plays the controller's loop, until all trials are answered and all groups have ended."""
        todo, groups, count = list(self.answers), self.groups, 0
        while not self.is_stopped and (todo or groups):
            self.world.wait(lambda: bool(self.given), 1.0)
            self.cluster.nodes()
            while self.given:
                match self.given.pop(0):
                    case TrialFinished() as report:
                        self.finish(report)
                    case GroupsEnded(groups=(group,)):
                        del groups[group]
                        self.killed.pop(group, None)
                        if group in self.sent:
                            assert group in self.doomed, f"{group} died without a fault"
                            self.answers[self.sent.pop(group)[0]] += 1
                    case StopRequested(cause=cause):
                        self.is_stopped, self.state.sweep.ended = (
                            True,
                            SimpleNamespace(reason=cause),
                        )
            self.kill_overdue()
            if todo and len(groups) < GROUPS:
                count += 1
                name = f"group-{count}" + "-slow" * (self.random.random() < 0.1)
                self.doomed |= {name} if "slow" in name else set()
                groups[name] = False
                self.cluster.start_group(name)
            for group in sorted(groups.keys() - self.sent.keys() - self.killed.keys()):
                if todo:
                    self.send(group, todo.pop(0))
                elif not groups[group]:
                    groups[group] = True
                    self.cluster.send(group, Dismiss(group=group))

    def send(self, group: str, number: int) -> None:
        if self.random.random() < 0.2:
            self.cluster.send(group, Release(group=group))
        run = Run(
            group=group,
            request=TrialRequest(number=number, plan=make_plan(), spec=SPEC),
            device="cpu",
            folder="/",
            deadline_seconds=DEADLINE,
            placement=PLACEMENT,
            addresses=(("a", "a:1"), ("b", "b:1")),
            fresh=self.random.random() < 0.2,
        )
        self.sent[group] = number, self.world.now
        self.cluster.send(group, run)
        if self.random.random() < 0.5:
            self.world.after(self.random.uniform(5, 100), partial(self.fail, group))

    def finish(self, report: TrialFinished) -> None:
        """Checks a report: the only answer to what its group was sent, and of that trial."""
        group, outcome = report.group, report.outcome
        if group in self.killed:
            return  # it is late: the controller ignores it
        assert group in self.sent, f"trial {report.number} is answered twice"
        number, _ = self.sent.pop(group)
        assert number == report.number
        self.answers[number] += 1
        if isinstance(outcome, Measured):
            assert outcome.samples_per_second.value == 1 + number, "the outcome of another trial"
        else:
            assert group in self.hurt | self.doomed, f"{outcome} without a fault"
        assert set(report.lost_nodes) <= {"a", "b"}
        if report.workers_ended:
            self.hurt.discard(group)

    def kill_overdue(self) -> None:
        now = self.world.now
        assert all(now < at + CLEANUP for at in self.killed.values()), "a killed group does not end"
        for group, (number, at) in tuple(self.sent.items()):
            if now > at + LONGEST:
                assert group in self.stuck, f"trial {number} is not answered"
                self.killed[group] = now
                self.answers[number] += 1
                del self.sent[group]
                self.cluster.kill(group)


def play(seed: int, folder: Path) -> Sweep:
    """Plays a sweep, and checks how it ends."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        sweep = Sweep(seed, monkeypatch, folder)
        sweep.world.run(sweep.main, LIFE)
    assert sweep.world.unbounded == []
    assert sweep.exit_code is None
    if sweep.is_lost:
        return sweep
    assert not sweep.is_stopped
    assert set(sweep.answers.values()) == {1}
    assert not any(rank.is_alive for ranks in sweep.ranks.values() for rank in ranks)
    assert not sweep.placements
    assert sweep.doomed or not list(folder.iterdir())
    return sweep


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 1000), marks=pytest.mark.thorough)], ids=len
)
def test_each_trial_is_answered_once_and_all_is_freed(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        (folder := tmp_path / str(seed)).mkdir()
        play(seed, folder)


def _keeps_workers(self: WorkerGroup) -> tuple[str, ...]:
    return ()


def _goes_on(self: WorkerGroup, request: TrialRequest, deadline_seconds: float) -> Any:
    reference = self._channel.run.remote(request)
    return self._wait(reference, deadline_seconds, "running the trial") or make_oom()


def _awaits(self: TuneCluster, reference: Any, seconds: float) -> Any:
    return tune.ray.get(reference)


def _reports_twice(self: GroupSearcher, trial_id: str, result: dict[str, Any]) -> None:
    for _ in range(2):
        self._cluster.put(result["report"])


async def _forgets(self: GroupQueues, group: str) -> None:
    """Does nothing."""


async def _is_late(self: GroupQueues, seconds: float) -> Any:
    """Awaits late answers of no silent runner again, as earlier versions did."""
    self._heartbeats = {}
    return [], self._worker_processes


@pytest.mark.parametrize(
    ("at", "name", "fault", "found"),
    [
        (WorkerGroup, "kill", _keeps_workers, "rank.is_alive"),
        (WorkerGroup, "run", _goes_on, "the outcome of another trial"),
        (TuneCluster, "_answer", _awaits, "unbounded"),
        (GroupSearcher, "on_trial_result", _reports_twice, "is answered twice"),
        (GroupQueues, "expire", _forgets, "a killed group does not end"),
        (GroupQueues, "silent_runners", _is_late, "is not answered"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_planted_fault_is_found(
    at: type,
    name: str,
    fault: Callable[..., Any],
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(at, name, fault)

    with pytest.raises(AssertionError, match=found):
        for seed in range(100):
            (folder := tmp_path / str(seed)).mkdir()
            play(seed, folder)


@pytest.mark.parametrize("seed", range(3))
def test_a_driver_that_waits_in_ray_for_ever_is_ended(seed: int, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        sweep = Sweep(seed, monkeypatch, tmp_path)
        silent_at = sweep.world.now + 50.0
        sweep.world.after(50.0, lambda: setattr(sweep.world, "is_silent", True))
        with pytest.raises(AssertionError, match="is not over"):
            sweep.world.run(sweep.main, 450.0)

    assert sweep.exit_code == 75
    assert 300 < sweep.ended_at - silent_at < 325
