"""One real sweep with faults at random moments of its trials, and what it is found guilty of."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from mlflow import MlflowClient

from benchmarks.chaos import conduct, model
from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.plants import VARIABLE
from benchmarks.chaos.rig import JOURNAL, MESSAGES, Mark, Rig, send
from benchmarks.chaos.settings import Setting, setting
from benchmarks.chaos.storage_faults import SHARED
from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from tests.rigs.judge import History, Line, Verdict, judge, obeyed, struck

PLIMSOLL = str(Path(sys.executable).with_name("plimsoll"))
# `plimsoll` with the bugs that it is to have: a driver does not import the model, as ranks do
_DRIVER = """
from benchmarks.chaos.plants import plant
from orchestrator.cli import main

plant()
main()
"""
PLANS = (1, 2, 4, 8, 16, 32)
SPEC = """
model: chaos_model:make
cluster: {{device: cpu, workers: 2, memory_gib: 0.5, wait_minutes: 5, start_minutes: 3}}
train: {{global_batch: 64, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [{plans}]}}
objective: {{max_seconds: 1.5, interval: 0.0001, max_steps: 100000, racing: false}}
validation: {{enabled: false}}
budget: {{trials: {trials}, minutes: 60, trial_seconds: 25}}
study: {{storage: "{storage}", folder: "{runs}", wait_minutes: 2}}
tracking: {tracking}
"""
_SWEEP_SECONDS = 1200.0  # a sweep and its faults take a few minutes; none takes so long
_GONE_SECONDS = 150.0  # in which Ray ends by itself when its driver was killed
_LOOK_SECONDS = 1.0  # between two looks at the shared memory in use
_AGAIN_SECONDS = 2.0  # after which a fault that finds nothing to be done to is tried again
_DRIVERS = 12  # that are started, one after the other, before it is given up


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Planned:
    """A fault, and when: so many seconds into the trial of that number, counted from 1."""

    trial: int
    after_seconds: float
    kind: str


@dataclass(slots=True, kw_only=True)
class Report:
    """The result of a sweep. All counts are of this sweep."""

    seed: int
    setting: str
    faults: list[str] = field(default_factory=list)  # that were injected, by kind
    missed: list[str] = field(default_factory=list)  # for which it was over too soon
    drivers: int = 0
    seconds: float = 0.0
    hung: bool = False
    leaked: list[str] = field(default_factory=list)
    verdict: dict[str, Any] = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # what else should not be
    history: list[str] = field(default_factory=list)  # of trials and faults, if anything is wrong

    @property
    def clean(self) -> bool:
        """True if nothing is wrong."""
        return not (self.hung or self.leaked or self.troubles or any(self.verdict.values()))


def planned(seed: int, kinds: Sequence[str], count: int) -> list[Planned]:
    """Faults of a sweep, in the order of their moments."""
    draw = random.Random(seed)
    faults = [
        Planned(
            kind=draw.choice(kinds),
            trial=draw.randint(1, len(PLANS)),
            after_seconds=draw.uniform(0.0, 4.0),
        )
        for _ in range(count)
    ]
    return sorted(faults)


def run(
    folder: Path, seed: int, faults: Sequence[Planned], kept_in: str, plants: Sequence[str]
) -> Report:
    """Runs a sweep to its end, through all its faults.

    Args:
        folder: Of its own, empty.
        seed: Of what the faults draw.
        faults: In their order.
        kept_in: One of `SETTINGS`; `disk` needs the right to mount.
        plants: Bugs that it is to have, of `PLANTS`.
    """
    with setting(kept_in, folder) as where:
        return _Sweep(folder, seed, list(faults), where, plants).run()


class _Sweep:
    def __init__(
        self,
        folder: Path,
        seed: int,
        faults: list[Planned],
        where: Setting,
        plants: Sequence[str],
    ) -> None:
        self._folder, self._faults, self._setting = folder, faults, where
        self._plants = plants
        self._draw = random.Random(seed)
        self._injected: list[tuple[str, int, int]] = []  # kind, and the events before and after it
        self._met: list[tuple[int, str]] = []  # the driver that a fault met, and its kind
        self._report = Report(seed=seed, setting=where.name)
        self._shared: set[str] = set()  # names of shared memory that its processes were seen to use

    def run(self) -> Report:
        began = time.monotonic()
        self._prepare()
        environ = {**self._environment, VARIABLE: " ".join(self._plants)}
        command = [sys.executable, "-c", _DRIVER, "tune", "sweep.yaml", "--events"]
        rig = Rig(self._folder, self._setting, command, environ)
        self._start(rig)
        try:
            self._through(rig, began + _SWEEP_SECONDS)
        except BaseException:  # of the campaign: nobody else would end them
            send(rig.processes(), signal.SIGKILL)
            raise
        self._report.seconds = round(time.monotonic() - began, 1)
        self._judge(rig)
        return self._report

    def _prepare(self) -> None:
        folder = self._folder
        shutil.copy(model.__file__, folder / "chaos_model.py")
        for name in ("tmp", "orders"):
            (folder / name).mkdir(exist_ok=True)
        server = self._setting.tracking
        spec = SPEC.format(
            plans=", ".join(map(str, PLANS)),
            storage=self._setting.storage,
            runs=self._setting.runs,
            trials=conduct.TRIALS,
            tracking=f'{{uri: "{server.uri}"}}' if server else "{enabled: false}",
        )
        (folder / "sweep.yaml").write_text(spec)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self._folder),
            "TMPDIR": str(self._folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    def _start(self, rig: Rig) -> None:
        rig.start()
        self._report.drivers += 1

    def _through(self, rig: Rig, until: float) -> None:
        """Injects what is due, and starts the same command again where the driver was ended."""
        since: list[float] = []  # when each trial was first seen to be under way
        looked = -math.inf
        while True:
            if time.monotonic() > until:
                self._report.hung = True
                send(rig.processes(), signal.SIGKILL)
                return
            code = rig.driver.poll()
            if code is not None and self._is_over(rig, code):
                return
            started = rig.count("trial_started")
            since += [time.monotonic()] * (started - len(since))
            due = self._faults and _is_due(self._faults[0], since)
            if due or time.monotonic() > looked + _LOOK_SECONDS:
                self._shared |= rig.shared_memory()
                looked = time.monotonic()
            if due:
                self._inject(self._faults.pop(0), rig)
            time.sleep(0.05)

    def _is_over(self, rig: Rig, code: int) -> bool:
        """Returns whether a driver's end ends the sweep; starts another driver if it does not."""
        self._report.exits.append(code)
        if code == 0:
            return True
        if self._report.drivers >= _DRIVERS:
            self._report.troubles.append(f"{_DRIVERS} drivers did not bring it to an end")
            return True
        if left := rig.wait_gone(_GONE_SECONDS):
            self._report.leaked += [f"after its driver: {_words(process)}" for process in left]
        self._start(rig)
        return False

    def _inject(self, fault: Planned, rig: Rig) -> None:
        kind = FAULTS[fault.kind]
        before, driver = len(rig.events), self._report.drivers - 1
        has_begun = rig.has_begun()
        if kind.inject(rig, self._draw):
            self._met.append((driver, fault.kind))
            if not has_begun:
                self._met.append((driver, conduct.STARTING))
            self._injected.append((fault.kind, before, len(rig.events)))
            self._report.faults.append(fault.kind)
        else:  # there is none yet, or none any more
            later = replace(fault, after_seconds=fault.after_seconds + _AGAIN_SECONDS)
            self._faults = sorted([*self._faults, later])

    def _judge(self, rig: Rig) -> None:
        report = self._report
        left = rig.wait_gone(60)
        report.leaked += [f"process {_words(p)}" for p in left]
        send(left, signal.SIGKILL)
        kept = sorted(name for name in self._shared if (SHARED / name).exists())
        report.leaked += [f"shared memory {name}" for name in kept]
        filled = self._folder.glob("tmp/plimsoll-*/*")  # a process that is killed leaves empty ones
        report.leaked += [f"folder {path.parent.name}" for path in filled]
        report.missed = [fault.kind for fault in self._faults]
        records = load_records(load_spec(self._folder / "sweep.yaml"), "sweep")
        faults = [struck(rig.events, *fault) for fault in self._injected]
        orders = obeyed(self._folder / "orders")
        events, journal = _remembered(rig.events, _journal(self._folder), rig.forgotten)
        verdict: Verdict = judge(
            History(events=events, journal=journal, records=records, injected=[*faults, *orders])
        )
        report.verdict = {name: list(told) for name, told in asdict(verdict).items()}
        report.outcomes = [f"{record.number} {record.outcome.kind}" for record in records]
        report.troubles += self._troubles(rig, records, events, journal)
        if not report.clean:
            report.history = [*map(_event_words, rig.events), *map(str, (*faults, *orders))]

    def _troubles(
        self,
        rig: Rig,
        records: Sequence[Record],
        events: Sequence[Mapping[str, Any]],
        journal: Sequence[Line],
    ) -> Iterator[str]:
        """Yields what else is wrong with a sweep that is over."""
        yield from rig.troubles
        messages = ["", *rig.said, *(self._folder / MESSAGES).read_text().splitlines()]
        for before, line in pairwise(messages):  # Python's words for a signal in a finalizer
            if "Traceback" in line and not before.startswith("Exception ignored in"):
                yield line
        yield from conduct.wrong_exits(self._report.exits, self._met)
        yield from conduct.beyond_budget(records)
        if "clock_jumps" not in self._report.faults:  # the times of events jump with it
            yield from conduct.slow_attempts(events)
        told = self._plimsoll("report", "--json", "sweep.yaml")
        if told.returncode:
            yield f"plimsoll report: {told.stderr.strip()}"
        else:
            yield from conduct.wrong_answer(
                json.loads(told.stdout)["result"]["answer"], records, journal
            )
        if self._setting.tracking:
            yield from self._untrue_tracking(self._setting.tracking.uri, records)
        if untried := len(PLANS) - len({record.plan for record in records}):
            yield f"{untried} plans have no outcome"

    def _plimsoll(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PLIMSOLL, *words],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def _untrue_tracking(self, uri: str, records: Sequence[Record]) -> list[str]:
        """Sends what the sweep could not; returns a complaint unless MLflow has each trial once."""
        sent = self._plimsoll("sync", "sweep.yaml")
        if sent.returncode:
            return [f"plimsoll sync: {sent.stderr.strip()}"]
        client = MlflowClient(tracking_uri=uri)
        (experiment,) = client.search_experiments(filter_string="name = 'sweep'")
        runs = client.search_runs([experiment.experiment_id], max_results=1000)
        tags = [run.data.tags for run in runs if "mlflow.parentRunId" in run.data.tags]
        # not those that were cut short and ran once more, which a study does not count
        held = Counter(int(tag["plimsoll.trial"]) for tag in tags if tag["outcome"] != "cancelled")
        wanted = Counter(record.number for record in records)
        return [] if held == wanted else [f"MLflow holds {dict(held)} of {dict(wanted)}"]


def _is_due(fault: Planned, since: Sequence[float]) -> bool:
    began = since[fault.trial - 1] if fault.trial <= len(since) else math.inf
    return time.monotonic() >= began + fault.after_seconds


def _remembered(
    events: Sequence[Mapping[str, Any]],
    journal: Sequence[Line],
    forgotten: Sequence[tuple[Mark, Mark]],
) -> tuple[list[Mapping[str, Any]], list[Line]]:
    """Leaves out the trials that began or ended while the study was, which is no more."""
    told, lines = list(events), list(journal)
    for since, until in reversed(forgotten):
        trials = ("trial_started", "trial_ended")
        between = told[since.events : until.events]
        told[since.events : until.events] = [one for one in between if one["event"] not in trials]
        del lines[since.lines : until.lines]
    return told, lines


def _journal(folder: Path) -> list[Line]:
    file = folder / JOURNAL
    lines = file.read_text().splitlines() if file.exists() else []
    return [Line(**json.loads(line)) for line in lines]


def _event_words(event: Mapping[str, Any]) -> str:
    names = ("time", "event", "trial", "plan_key", "outcome", "detail", "text", "reason")
    return " ".join(str(event[name]) for name in names if name in event)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.NoSuchProcess:
        return "that is gone by now"
