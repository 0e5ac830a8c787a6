"""Groups, their channels and their driver on a played Ray, on which everything fails by seeds."""

import os
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
from orchestrator.cluster.worker_group import WorkerGroup
from orchestrator.core.budget import start_deadline_seconds
from orchestrator.core.inputs import GroupsEnded, StopRequested, TrialFinished
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import Placement
from orchestrator.core.schedule import REPORT_SECONDS
from search_spaces.errors import MachineError
from search_spaces.trial import Measured, TrialRequest
from tests.orchestrator.cluster.played_ray import Killed, Process, World, played
from tests.orchestrator.records import make_plan, make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured, make_oom

SPEC = make_spec(cluster={"workers": 2, "memory_gib": 0.5, "start_minutes": 2})
PLACEMENT = Placement((("a", 1), ("b", 1)))
DEADLINE, TRIALS, GROUPS = 60.0, 8, 2
FAULTS = ("rank dies", "rank hangs", "node", "group dies", "group hangs", "group is stuck")
FOUND = {  # seeds that failed before
    69: "a driver awaited a hung actor with each message, until the watchdog ended it",
    279: "a silent runner whose name came late was never killed",
}
LONGEST = start_deadline_seconds(SPEC) + DEADLINE + REPORT_SECONDS  # until the driver kills a group
CLEANUP = 60.0 + 180.0 * GROUPS  # until the end of a group that was killed is known
LIFE = TRIALS * (LONGEST + CLEANUP)


class Sweep:
    """A driver with its groups; plays Ray Tune, Ray Train, the ranks, and the controller."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.runners: dict[str, Process] = {}  # by group
        self.ranks: dict[str, list[Process]] = {}
        self.holding: set[Process] = set()  # runners with a placement group
        self.groups: dict[str, bool] = {}  # True if dismissed
        self.sent: dict[str, tuple[int, float]] = {}  # trial of each group, and since when
        self.killed: dict[str, float] = {}  # groups, and when
        self.hurt: set[str] = set()  # groups whose workers have a fault
        self.doomed: set[str] = set()  # groups that may die
        self.stuck: set[str] = set()  # groups that only the driver ends
        self.down: set[str] = set()  # nodes
        self.inputs: list[Any] = []
        self.answers = dict.fromkeys(range(TRIALS), 0)
        self.is_stopped = self.is_lost = False
        self.exited: tuple[int, float] | None = None  # by the watchdog, and when
        self.state = SimpleNamespace(sweep=SimpleNamespace(ended=None))
        self.put = self.inputs.append
        for name, replacement in played(self.world).items():
            for module in (channels, tune, watchdog, worker_group):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, replacement)
        monkeypatch.setattr(watchdog, "end_now", self.exit)
        monkeypatch.setattr(tune, "_SUGGEST_SECONDS", 0.0)
        monkeypatch.setattr(tune, "_run_tune", self.run_tune)
        monkeypatch.setattr(tune, "clean_up_group", self.clean_up)
        for name, act in {
            "trainer_of": self.trainer_of,
            "session_folder": lambda: folder,
            "oom_killed": lambda _: False,
            "end_controllers": lambda: None,
            "end_worker_processes": self.end_workers,
            "remove_abandoned_placement_groups": lambda: self.holding.discard(self.world.process),
            "unreachable_nodes": lambda nodes: tuple(one for one, _ in nodes if one in self.down),
        }.items():
            monkeypatch.setattr(worker_group, name, act)

    def exit(self, code: int) -> None:
        self.exited = code, self.world.now
        raise Killed

    def run_tune(self, cluster: TuneCluster, most: int, _: type) -> None:
        """Plays Ray Tune: starts groups, passes their results on, notices their deaths."""
        searcher, running = GroupSearcher(cluster), dict[str, list[Any]]()
        while True:
            tune.AbandonCallback(cluster).on_step_end(0, [])
            trial = str(len(self.runners))
            config = searcher.suggest(trial) if len(running) < most else None
            if config == GroupSearcher.FINISHED and not running:
                return
            if isinstance(config, dict):
                results = running[trial] = list[Any]()
                self.runners[config["group"]] = runner = Process(self.world.driver)
                self.world.start(runner, partial(self.run_group, config, results))
            for trial, results in tuple(running.items()):
                if results and not results[0].get("done"):
                    searcher.on_trial_result(trial, results[0])
                    results.clear()
                elif results or not list(self.runners.values())[int(trial)].is_alive:
                    searcher.on_trial_complete(trial, error=not results)
                    del running[trial]
            self.world.sleep(0.5)

    def run_group(self, config: dict[str, Any], results: list[Any]) -> None:
        runner = GroupRunner.__new__(GroupRunner)
        runner.setup(config)
        while not any(one.get("done") for one in results):
            self.world.wait(lambda: not results)
            results.append(runner.step())
        runner.cleanup()
        self.world.kill(self.world.process)

    def trainer_of(self, _spec: Any, _: Any, _device: str, _folder: str, config: Any) -> Any:
        """Plays a run of Ray Train, which ends when all ranks have left or one died."""
        world, runner, left = self.world, self.world.process, list[int]()
        (group,) = (name for name, process in self.runners.items() if process is runner)

        def fit() -> None:
            ranks = self.ranks[group] = [Process(runner, node) for node in ("a", "b")]
            self.holding.add(runner)
            for rank, process in enumerate(ranks):
                world.start(process, partial(self.run_rank, group, rank, config["channel"], left))
            world.wait(lambda: len(left) == 2 or not all(rank.is_alive for rank in ranks))
            if len(left) < 2:
                world.sleep(self.random.uniform(0, 15))
                raise TrainingFailedError("a rank died")
            self.holding.discard(runner)

        return SimpleNamespace(fit=fit)

    def run_rank(self, group: str, rank: int, channel: Any, left: list[int]) -> None:
        """Plays `worker_loop`; the speed that a trial measures tells its number."""
        get, world, process = tune.ray.get, self.world, self.world.process
        if process.node in self.down:
            self.hurt.add(group)
            world.kill(process)
        token = tune.cloudpickle.dumps(SimpleNamespace(process=process))
        get(channel.register.remote(WorkerProcess(token, process.node, pid=1, started_at=0.0)))
        world.sleep(self.random.choice([5.0, 9.0, 30.0, 300.0 if "slow" in group else 1.0]))
        get(channel.set_ready.remote(CPU_FINGERPRINT))
        while (request := get(channel.next.remote(rank))) is not None:
            world.sleep(self.random.uniform(1, 40))
            if self.random.random() < 0.05:  # its peers may wait for it in a collective
                self.hurt.add(group)
                get(channel.announce.remote(rank, make_oom()))
                world.sleep(self.random.choice([1.0, 60.0, inf]))
            if rank == 0:
                get(channel.post.remote(make_measured(1.0 + request.number)))
        left.append(rank)
        world.kill(process)

    def end_workers(self, processes: Any) -> tuple[str, ...]:
        for process in processes:
            self.world.kill(tune.cloudpickle.loads(process.worker).process)
        if any(self.runners[one] is self.world.process for one in self.stuck & self.sent.keys()):
            self.world.sleep()
        return ()

    def clean_up(self, processes: Any) -> tuple[str, ...]:
        self.holding = {runner for runner in self.holding if runner.is_alive}
        self.world.sleep(self.random.choice([1.0, 150.0, inf]))
        return self.end_workers(processes)

    def fail(self, group: str) -> None:
        """Lets something of a group fail, unless it has yet to start, or ends."""
        if group not in self.ranks or self.groups.get(group, True):
            return
        fault, rank = self.random.choice(FAULTS), self.random.choice(self.ranks[group])
        self.hurt.add(group)
        rank.hangs |= fault in ("rank hangs", "group is stuck")
        if fault == "rank dies":
            self.world.kill(rank)
        if fault == "node":
            self.lose_node(rank.node)
        if fault.startswith("group"):
            self.doomed.add(group)
            self.stuck |= {group} if fault == "group is stuck" else set()
            self.runners[group].hangs = fault == "group hangs"
            if fault == "group dies":
                self.world.kill(self.runners[group])

    def lose_node(self, node: str) -> None:
        self.down.add(node)
        self.world.after(100.0, partial(self.down.discard, node))
        self.hurt |= self.ranks.keys()
        for process in (one for ranks in self.ranks.values() for one in ranks if one.node == node):
            self.world.kill(process)

    def lose_queues(self, process: Process) -> None:
        self.is_lost, process.hangs = True, self.random.random() < 0.5
        if not process.hangs:
            self.world.kill(process)

    def main(self) -> None:
        """Plays the driver, until its groups have ended."""
        dog = watchdog.Watchdog(os.EX_TEMPFAIL, lambda: None)
        nodes: Any = SimpleNamespace(up=lambda: (), request_capacity=lambda _: None)
        self.cluster = TuneCluster(nodes, alive=dog.alive)
        queues: Any = self.cluster.queues
        if self.random.random() < 0.1:
            lose = partial(self.lose_queues, queues.process)
            self.world.after(self.random.uniform(0, 300), lose)
        try:
            run_groups(self, self.cluster, GROUPS)  # type: ignore[arg-type]
        except MachineError:
            assert self.is_lost
        self.world.sleep(30.0)
        dog.stop()

    def run(self) -> None:
        """Plays the controller's loop, until all trials are answered and all groups have ended."""
        trials, count = list(self.answers), 0
        while not self.is_stopped and (trials or self.groups):
            self.world.wait(lambda: bool(self.inputs), 1.0)
            self.cluster.nodes()
            while self.inputs:
                self.take(self.inputs.pop(0))
            self.kill_overdue()
            if trials and len(self.groups) < GROUPS:
                count += 1
                name = f"group-{count}" + "-slow" * (self.random.random() < 0.1)
                self.doomed |= {name} if "slow" in name else set()
                self.groups[name] = False
                self.cluster.start_group(name)
            for group in sorted(self.groups.keys() - self.sent.keys() - self.killed.keys()):
                if trials:
                    self.send(group, trials.pop(0))
                elif not self.groups[group]:
                    self.groups[group] = True
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

    def take(self, given: Any) -> None:
        """Checks an input: a report or a death is the only answer to what its group was sent."""
        if isinstance(given, StopRequested):
            self.is_stopped, self.state.sweep.ended = True, SimpleNamespace(reason=given.cause)
        elif isinstance(given, GroupsEnded):
            (group,) = given.groups
            del self.groups[group]
            self.killed.pop(group, None)
            if group in self.sent:
                is_explained = self.is_lost if given.lost_contact else group in self.doomed
                assert is_explained, f"{group} died without a fault"
                self.answers[self.sent.pop(group)[0]] += 1
        elif given.group not in self.killed:  # else it is late: the controller ignores it
            self.finish(given)

    def finish(self, report: TrialFinished) -> None:
        group, outcome = report.group, report.outcome
        assert group in self.sent, f"trial {report.number} is answered twice"
        number, _ = self.sent.pop(group)
        assert number == report.number
        self.answers[number] += 1
        if isinstance(outcome, Measured):
            assert outcome.samples_per_second.value == 1 + number, "the outcome of another trial"
        else:
            assert group in self.hurt | self.doomed, f"{outcome} without a fault"
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


def play(seed: int, folder: Path) -> None:
    """Plays a sweep, and checks how it ends."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        sweep = Sweep(seed, monkeypatch, folder)
        sweep.world.run(sweep.main, LIFE)
    assert sweep.world.unbounded == [], "awaited without a deadline"
    assert sweep.exited is None, "the watchdog ended a driver that was alive"
    assert sweep.is_stopped <= sweep.is_lost
    if not sweep.is_lost:
        assert set(sweep.answers.values()) == {1}
        alive = [rank for ranks in sweep.ranks.values() for rank in ranks if rank.is_alive]
        assert alive + list(sweep.holding) == [], "a group is not freed"
        assert sweep.doomed or not list(folder.iterdir())


@pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(25, 1000), marks=pytest.mark.thorough)], ids=len
)
def test_each_trial_is_answered_once_and_all_groups_are_freed(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        play(seed, tmp_path / str(seed))


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.get)
def test_what_was_found_stays_mended(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path / "group")


def _goes_on(self: WorkerGroup, request: TrialRequest, deadline_seconds: float) -> Any:
    reference = self._channel.run.remote(request)
    return self._wait(reference, deadline_seconds, "running the trial") or make_oom()


def _reports_twice(self: GroupSearcher, trial_id: str, result: dict[str, Any]) -> None:
    for _ in range(2):
        self._cluster.put(result["report"])


async def _forgets(self: GroupQueues, group: str) -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    ("place", "name", "fault", "found"),
    [
        (WorkerGroup, "kill", lambda _: (), "a group is not freed"),
        (WorkerGroup, "run", _goes_on, "the outcome of another trial|without a fault"),
        (TuneCluster, "_answer", lambda _, answer, __: tune.ray.get(answer), "without a deadline"),
        (GroupSearcher, "on_trial_result", _reports_twice, "is answered twice"),
        (GroupQueues, "expire", _forgets, "a killed group does not end"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_planted_fault_is_found(
    place: type, name: str, fault: Any, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, fault)

    with pytest.raises(AssertionError, match=found):
        test_each_trial_is_answered_once_and_all_groups_are_freed(range(100), tmp_path)


def test_a_driver_that_waits_in_ray_for_ever_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(0, monkeypatch, tmp_path)
    silent_at = sweep.world.now + 50.0
    sweep.world.after(50.0, lambda: setattr(sweep.world, "is_silent", True))
    with pytest.raises(AssertionError, match="is not over"):
        sweep.world.run(sweep.main, 450.0)

    assert sweep.exited is not None
    code, at = sweep.exited
    assert code == os.EX_TEMPFAIL
    assert 295 < at - silent_at < 325
