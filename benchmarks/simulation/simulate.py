"""Simulates the sweep of one seed, from its first driver to its end, and checks it throughout."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import optuna

from benchmarks.simulation.cluster import Nodes, VirtualCluster
from benchmarks.simulation.invariants import (
    DEATHS,
    MACHINE,
    DriverChecks,
    SweepChecks,
    Violation,
    check_winner,
    crashed,
)
from benchmarks.simulation.jobs import CLUSTER, RANKS, Job, draw_job
from benchmarks.simulation.storage import (
    FailingInMemoryStorage,
    FailingStudyStorage,
    Faults,
    LockTable,
    VirtualLock,
)
from benchmarks.simulation.world import DriverKilled, World
from orchestrator.cli.exit_codes import ExitCode, exit_code_after, sweep_exit_code
from orchestrator.controller import Controller
from orchestrator.core.events import Event, TrialEnded
from orchestrator.core.inputs import (
    Answer,
    GroupsEnded,
    Input,
    StopRequested,
    Tick,
    TrialFinished,
)
from orchestrator.core.instructions import Instruction
from orchestrator.core.placement import CapacityRequest
from orchestrator.core.reasons import MachineFailed
from orchestrator.core.records import Record
from orchestrator.core.repeats import is_repeat
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.study.locks import locked_error
from orchestrator.study.retry import Clock
from orchestrator.study.serialization import kept_end, records_of
from orchestrator.study.study import Study
from orchestrator.sweep import SweepStopped
from search_spaces.errors import StudyError
from search_spaces.trial import Cancelled, NoRoom, Stopped

_TICK_SECONDS = 10.0
_MAX_DRIVERS = 3  # after the faults have ended
_MAX_INSTRUCTIONS = 500  # that one input may cause
_END_SECONDS = 30_000.0  # after the faults have ended
SQLITE_EVERY = 500  # seeds: real databases take a hundred times as long
SAMPLER_EVERY = 250  # seeds with Plimsoll's own sampler


@dataclass
class Report:
    """The result of a simulation."""

    seed: int
    violation: str | None = None
    drivers: int = 0
    events: int = 0
    trials: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)


def simulate(seed: int) -> Report:
    """Simulates the sweep of a seed, which draws everything."""
    simulation = _Simulation(seed)
    report = Report(seed)
    try:
        simulation.run()
    except Violation as violation:
        report.violation = str(violation)
    except Exception as error:  # noqa: BLE001  # any error is one of the controller's
        report.violation = f"{type(error).__name__}: {error}"
    report.drivers, report.events = simulation.drivers, simulation.world.events
    report.trials, report.ends = simulation.trials, simulation.ends
    report.faults = simulation.world.faults
    return report


def simulate_range(seeds: range) -> tuple[list[Report], float]:
    """Simulates seeds; returns the reports, and the seconds of processor time that they took.

    Here and not in `__main__`, from which a spawned process imports nothing.
    """
    before = time.process_time()
    reports = [simulate(seed) for seed in seeds]
    return reports, time.process_time() - before


@lru_cache(maxsize=1)
def _folder() -> str:
    """Returns a folder of this process in memory, for files that few simulations write."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="plimsoll-simulation-", dir=base)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _MortalController(Controller):  # type: ignore[misc]
    """Controller whose process may end before and after each instruction."""

    world: World

    @property
    def is_over(self) -> bool:
        """True once its loop ends."""
        return self._is_over

    def _carry_out(self, instruction: Instruction) -> Answer | None:
        self.world.instructions += 1
        if self.world.instructions > _MAX_INSTRUCTIONS:
            raise Violation("the controller does not come to rest")
        if self.world.occurs("driver_killed"):
            raise DriverKilled
        answer = super()._carry_out(instruction)
        if self.world.occurs("driver_killed"):
            raise DriverKilled
        return answer


@final
class _Listener(AbstractCallback):
    def __init__(self, hear: Callable[[Event], None]) -> None:
        self._hear = hear

    def on_event(self, event: Event, state: SweepState) -> None:
        self._hear(event)

    def close(self) -> None:
        """Does nothing."""


@final
class _Driver:
    """One life of a driver."""

    def __init__(self, simulation: _Simulation) -> None:
        self._simulation = simulation
        self._world = world = simulation.world
        self.job = simulation.job
        self.alive = True
        self.lock = VirtualLock(simulation.locks)
        self.checks = DriverChecks(job=self.job, started_at=world.now, now=world.now)
        self.cluster = VirtualCluster(
            world,
            simulation.seed,
            simulation.nodes,
            self.checks,
            deliver=self.deliver,
            on_kill=self._count_death,
        )
        self.controller: _MortalController | None = None

    @property
    def sweep(self) -> SweepState:
        """The state of the sweep that it has begun."""
        assert self.controller is not None
        return self.controller.state.sweep

    def start(self) -> None:
        """Opens the study and starts the sweep, unless it is refused or dies before."""
        try:
            if not self.lock.take():
                self.end("refused", locked_error(self._simulation.name, ""))
                return
            self.controller = self._open()
            self._world.after(0.0, self._tick)
        except DriverKilled:
            self.end("killed")
        except StudyError as error:
            self.end("study_error", error)

    def _open(self) -> _MortalController:
        simulation, job, world = self._simulation, self.job, self._world
        study = Study(
            job.spec,
            simulation.name,
            job.space,
            lock=self.lock,
            clock=Clock(now=lambda: world.now, sleep=world.pass_by),
            storage=simulation.open_storage(),
        )
        records = study.records()
        self.checks.done_before = frozenset(record.plan.key for record in records)
        self.checks.results_before = sum(not is_repeat(record) for record in records)
        self.checks.rank_hours = (
            sum(
                record.plan.world_size * max(record.ended_at - record.started_at, 0.0)
                for record in records
            )
            / 3600
        )
        offset = world.offset
        self.checks.started_at = world.now
        request = CapacityRequest(
            groups=job.groups, ranks=RANKS, share=job.spec.cluster.share_nodes
        )
        started = study.driver_started(CLUSTER, request, job.groups, world.now + offset)
        for trial in started.interrupted:
            if trial.number in simulation.checks.closed:
                raise Violation(f"trial {trial.number} was closed, and counts as a dead driver's")
        interrupted = [trial.plan.key for trial in started.interrupted]
        simulation.checks.deaths.update(interrupted)
        if len(interrupted) == 1:
            simulation.checks.alone.update(interrupted)
        _MortalController.world = world
        return _MortalController(
            started,
            study,
            self.cluster,
            (_Listener(self._hear),),
            clock=lambda: world.now + offset,
        )

    def _hear(self, event: Event) -> None:
        self.checks.now = self._world.now
        self.checks.event(event)
        if isinstance(event, TrialEnded):
            self._simulation.checks.blamed(event.record, self._world.now)
            self._simulation.trials += 1

    def _tick(self) -> None:
        if self.alive:
            self.deliver(Tick(at=0.0))
            self._world.after(_TICK_SECONDS, self._tick)

    def deliver(self, given: Input) -> None:
        """Passes an input to the controller, and checks what comes of it."""
        if not self.alive or self.controller is None:
            return
        began = self.checks.now = self._world.now
        acknowledged = self._note(given)
        self._world.instructions = 0
        try:
            if not isinstance(given, Tick):
                self.controller.put(given)
            self.controller.step()
        except DriverKilled:
            self.end("killed")
            return
        if isinstance(given, StopRequested):
            self.end("stopped", SweepStopped(signal.SIGTERM))
            return
        if acknowledged is not None and self.controller.error is None:
            self._simulation.checks.acknowledged[acknowledged.number] = acknowledged.outcome
        if self.controller.error is None:
            self._agree_on_untried()
        if self._world.now == began:  # else groups waited with the driver for the study
            self.checks.waits(has_ended=self.controller.state.ended)
        if self.controller.is_over:
            error = self.controller.error
            how = "machine" if error is None and self._ended_by_machine() else "ended"
            self.end(how if error is None else "study_error", error)

    def lose_head(self) -> None:
        """Lets the watchdog end the process, whose trials must not count as a dead driver's."""
        assert self.controller is not None
        self.checks.now = self._world.now
        under_way, is_over = set(self.checks.under_way), self.checks.ended is not None
        try:
            self.controller.give_up(Stopped(by="the head has died"))
        except DriverKilled:
            self.end("killed")
            return
        was_away = self.controller.error is not None  # for too long: a result may be unwritten
        if not was_away and self._simulation.faults.failed_at < self._world.now:
            self._simulation.checks.closed |= under_way
        self.end("killed" if is_over else "machine", self.controller.error)

    def _check_exit_code(self, how: str, error: BaseException | None) -> None:
        """Checks that the exit code tells what a caller has to know of this end."""
        simulation = self._simulation
        code = exit_code_after(error) if error else sweep_exit_code(self.sweep)
        away = simulation.faults.failed_at >= self.checks.started_at
        if code is ExitCode.TRY_AGAIN:  # the same command resumes
            expected = (how == "study_error" and away) or how == "machine"
            expected |= how == "ended" and self._has_crashed_alone()
        elif code is ExitCode.USER_ERROR:
            # somebody else tunes the study, or it could not be opened
            others = simulation.drivers + simulation.seconds > 1
            reason = others or (away and self.controller is None)
            expected = how == "refused" or (how == "study_error" and reason)
        elif code is ExitCode.TERMINATED:
            expected = how == "stopped"
        else:  # the study holds the answer: `check_winner`
            expected = how == "ended"  # and not "machine": another driver could go on
        if not expected:
            raise Violation(f"a driver that {how} exits with {code.name}")

    def _has_crashed_alone(self) -> bool:
        return {one.outcome.kind for one in self.sweep.records} <= {"crashed", "cancelled"}

    def _ended_by_machine(self) -> bool:
        ended = self.sweep.ended
        return ended is not None and isinstance(ended.reason, MachineFailed | NoRoom)

    def _agree_on_untried(self) -> None:
        counted = self.sweep.untried_count
        untried = len(self.job.space.table) - len(self.checks.tried)
        if counted != untried:
            raise Violation(f"{counted} plans count as untried, of {untried}")

    def _note(self, given: Input) -> TrialFinished | None:
        """Takes note of an input; returns a report whose outcome has to be stored."""
        checks, sweep = self.checks, self._simulation.checks
        if isinstance(given, GroupsEnded):
            for group in given.groups:
                self._count_death(group)
                checks.group_ended(group)
        if not isinstance(given, TrialFinished):
            return None
        busy = checks.busy.get(given.group)
        if busy is None or busy.number != given.number or checks.ended is not None:
            return None
        started = checks.under_way[given.number]
        if started.validation != given.validation:
            return None
        sweep.reported[given.number].append(given.outcome)
        checks.reported(given)
        if crashed(given.outcome, *DEATHS):
            sweep.deaths[busy.plan] += 1
        sweep.trial_ended(started, self._world.now, given.outcome)
        if crashed(given.outcome, *DEATHS, *MACHINE) or given.lost_nodes or started.validation:
            return None
        return given

    def _count_death(self, group: str) -> None:
        busy = self.checks.busy.get(group)
        if busy is not None:
            checks = self._simulation.checks
            checks.deaths[busy.plan] += 1
            if (started := self.checks.under_way.get(busy.number)) is not None:
                checks.trial_ended(started, self._world.now, None)

    def end(self, how: str, error: BaseException | None = None) -> None:
        """Ends the process."""
        if not self.alive:
            return
        self.alive = False
        if how != "killed":
            self._check_exit_code(how, error)
        self.cluster.end_all()
        self.lock.release()
        self._simulation.driver_ended(self, how)


@final
class _Simulation:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.name = f"seed-{seed}"
        self.world = World(seed)
        real = seed % SAMPLER_EVERY == 7
        self.job: Job = draw_job(self.world.random, _folder(), real_sampler=real)
        self.nodes = Nodes(self.world, self.job)
        self.locks = LockTable()
        self.checks = SweepChecks()
        self.faults = Faults(self.world)
        self._file = Path(_folder(), f"{self.name}.db")
        self._storage: Any = None if seed % SQLITE_EVERY == 3 else FailingInMemoryStorage()
        self.drivers = self._drivers_after = 0
        self.seconds = 0  # drivers that were started beside the first
        self.trials = 0
        self.ends: Counter[str] = Counter()
        self._current: _Driver | None = None
        self._finished: _Driver | None = None

    def open_storage(self) -> Any:
        """Returns the storage for a driver that starts."""
        storage = self._storage or FailingStudyStorage(f"sqlite:///{self._file}")
        storage.faults = self.faults
        return storage

    def run(self) -> None:
        """Runs until a driver ends the sweep."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        world = self.world
        world.after(60.0, self._minute)
        world.after(world.heals_at, self.nodes.heal)
        self._start()
        while self._finished is None:
            world.step()
            if world.now > world.heals_at + _END_SECONDS:
                raise Violation("the sweep does not end")
        self._check_end(self._finished)

    def driver_ended(self, driver: _Driver, how: str) -> None:
        """Starts the next driver, unless the sweep has ended."""
        self.ends[how] += 1
        self._drivers_after += self.world.healed and how != "refused"
        if driver is not self._current:
            return
        self._current = None
        if how == "ended":
            self._finished = driver
        else:
            longest = 1000 if how in ("study_error", "machine") else 100
            self.world.after(self.world.random.uniform(1, longest), self._start)

    def _start(self) -> _Driver | None:
        """Starts a driver, and returns it; None if one is there."""
        if self._current is not None:
            return None
        self.drivers += 1
        if self._drivers_after > _MAX_DRIVERS:
            raise Violation(f"{_MAX_DRIVERS} drivers without a fault do not end the sweep")
        driver = self._current = _Driver(self)
        driver.start()
        return driver

    def _minute(self) -> None:
        world, driver = self.world, self._current
        if world.healed:
            return
        world.after(60.0, self._minute)
        for kind in ("node_lost", "node_preempted"):
            if world.occurs(kind):
                self.nodes.lose(preempted=kind == "node_preempted")
        if world.occurs("all_nodes_lost"):
            while self.nodes.up:
                self.nodes.lose(preempted=False, returns_after=3000.0)
        for kind, cause in (("workers_cannot_start", "start_failed"), ("disk_full", "disk_full")):
            if world.occurs(kind):
                world.breaks(cause)
        if world.occurs("clock_jump"):
            world.offset += world.random.choice([-86_400.0, -100.0, 100.0, 3600.0])
        if driver is not None and driver.controller is not None:
            self._disturb(driver)

    def _disturb(self, driver: _Driver) -> None:
        """Lets something happen to a driver."""
        world = self.world
        if world.occurs("second_driver"):
            self.seconds += 1
            second = _Driver(self)
            second.start()
            if second.controller is not None:
                raise Violation("two drivers tune one study")
        if world.occurs("idle_group_died"):
            driver.cluster.lose_idle_group()
        if world.occurs("lock_stolen"):
            self._steal_lock()
        elif world.occurs("head_lost"):
            driver.lose_head()
        elif world.occurs("stop_requested"):
            driver.deliver(StopRequested(cause=Stopped(by="SIGTERM"), at=0.0))

    def _steal_lock(self) -> None:
        """Starts another driver while one that has lost its lock goes on, and must not write."""
        self.locks.holder = None
        self._current = None
        other = self._start()
        if other is not None and self.world.random.random() < 0.5:  # the first may take it again
            self.world.after(self.world.random.uniform(1, 60), lambda: other.end("killed"))

    def _check_end(self, driver: _Driver) -> None:
        storage = self.open_storage()
        storage.faults = None
        study = optuna.load_study(study_name=self.name, storage=storage)
        records = records_of(study)
        self.checks.study(records)
        sweep = driver.sweep
        known = [one for one in sweep.records if not isinstance(one.outcome, Cancelled)]
        _require_same(known, records)
        end = kept_end(study)
        if end is None or sweep.ended is None or end.reason != sweep.ended.reason:
            raise Violation("the study does not hold how the sweep ended")
        check_winner(sweep.best, known, sweep.validations, self.job, sweep.failed_validations)
        self._file.unlink(missing_ok=True)


def _require_same(known: list[Record], stored: tuple[Record, ...]) -> None:
    def content(records: Any) -> dict[int, tuple[str, str]]:
        return {record.number: (record.plan.key, record.outcome.kind) for record in records}

    if content(known) != content(stored):
        raise Violation("the study differs from what the callbacks heard")
