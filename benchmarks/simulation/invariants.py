"""Invariants of each sweep. They share nothing with the code that decides.

The checks see what groups were told to run, what they reported, what the callbacks heard, and what
the study holds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from scipy import stats

from benchmarks.simulation.jobs import LIMIT_BYTES, Job
from orchestrator.core.events import Event, SweepEnded, TrialEnded, TrialStarted
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import Node
from orchestrator.core.reasons import (
    AllTried,
    BudgetSpent,
    ChecksMachine,
    ClusterSilent,
    MachineFailed,
    NoImprovement,
    Retry,
    SameFailure,
    measures_again,
)
from orchestrator.core.records import Record
from search_spaces.plan import Plan
from search_spaces.trial import Cancelled, Crashed, Measured, NodesLost, NoRoom, Outcome, Stopped

MACHINE = ("start_failed", "disk_full")  # causes of crashes
DEATHS = ("worker_died", "collective", "device_error")
_LOST = (*MACHINE, *DEATHS)
_MOST_LOSSES = 2  # of nodes during trials of a plan, which run again
_AVOID_SECONDS = 110.0  # for which a node that was lost is not used, whatever the cluster lists
_BACK_SECONDS = 130.0  # after which it is used again if the cluster lists it
_DRAIN_SECONDS = 300.0  # for idle groups to end once the sweep has
_MAY_FORGET = (  # reasons to end a sweep whose interrupted trials did not run again
    BudgetSpent | NoImprovement | SameFailure | MachineFailed | ClusterSilent | NoRoom | Stopped
)
_REPORT_SECONDS = 900.0  # by which the end of a trial may be known later than its deadline


@final
class Violation(Exception):
    """An invariant does not hold."""


def crashed(outcome: Outcome, *causes: str) -> bool:
    """Returns whether a trial crashed by one of these causes."""
    return isinstance(outcome, Crashed) and outcome.cause in causes


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise Violation(what)


@dataclass
class _Busy:
    number: int
    plan: str
    nodes: dict[str, int]
    until: float


@dataclass
class DriverChecks:
    """Checks of one driver's life.

    `done_before` are the plans that had a result when it started.
    """

    job: Job
    started_at: float
    now: float = 0.0
    done_before: frozenset[str] = frozenset()
    results_before: int = 0
    rank_hours: float = 0.0
    busy: dict[str, _Busy] = field(default_factory=dict)
    dismissed: set[str] = field(default_factory=set)
    workers: dict[str, dict[str, int]] = field(default_factory=dict)  # by group: ranks on nodes
    under_way: dict[int, TrialStarted] = field(default_factory=dict)
    pending: dict[int, float] = field(default_factory=dict)  # trials that wait for room, since when
    idle_since: float = -math.inf  # without a running trial
    drained_since: float | None = None  # without one, after the end
    looked_at: float = 0.0
    stuck_since: dict[int, float] = field(default_factory=dict)  # without a trial to wait for
    numbers: set[int] = field(default_factory=set)
    results: dict[str, Record] = field(default_factory=dict)  # by plan
    repeats: int = 0
    lost_nodes: dict[str, float] = field(default_factory=dict)
    losses: Counter[str] = field(default_factory=Counter)  # of nodes, by plan
    on_lost_nodes: set[int] = field(default_factory=set)  # trials that reported so
    died_on: dict[str, frozenset[str]] = field(default_factory=dict)  # last nodes, by plan
    interrupted: dict[str, int] = field(default_factory=dict)  # not run again yet, by plan
    ended: SweepEnded | None = None

    @property
    def tried(self) -> frozenset[str]:
        """Plans with a result or a running trial."""
        running = {trial.plan.key for trial in self.under_way.values()}
        return self.done_before | self.results.keys() | running

    def sent(self, message: Run | Release | Dismiss, listed: Iterable[Node]) -> None:
        """Checks a message to a group."""
        group = message.group
        _require(group not in self.dismissed, f"{group} gets a message after it was dismissed")
        match message:
            case Release():
                _require(group not in self.busy, f"{group} loses its workers during a trial")
                self.workers.pop(group, None)
            case Dismiss():
                _require(group not in self.busy, f"{group} is dismissed during a trial")
                self.dismissed.add(group)
            case Run():
                self._runs(message, {node.id: node for node in listed})

    def _runs(self, run: Run, listed: dict[str, Node]) -> None:
        number, plan, group = run.request.number, run.request.plan, run.group
        _require(self.ended is None, f"trial {number} runs after the end of the sweep")
        _require(group not in self.busy, f"{group} runs two trials")
        _require(number in self.under_way, f"trial {number} runs without having started")
        for other in self.busy.values():
            _require(other.number != number, f"trial {number} runs on two groups")
            _require(not run.request.validation, f"a validation runs beside trial {other.number}")
        again = run.request.validation or self.under_way[number].is_repeat
        _require(
            again == (plan.key in self.done_before | self.results.keys()),
            f"trial {number} measures a plan again, or for the first time, and should not",
        )
        spec = self.job.spec
        longest = spec.budget.trial_seconds * (
            spec.validation.longer if run.request.validation else 1
        )
        _require(0 < run.deadline_seconds <= longest, f"deadline {run.deadline_seconds}")
        self._is_placed(run, listed)
        self.pending.pop(number, None)
        assert run.placement is not None
        ranks = dict(run.placement.parts)
        if self.workers.get(group) not in (None, ranks):
            _require(run.fresh, f"{group} has its workers elsewhere and keeps them")
        _require(
            run.fresh or not run.request.validation or group not in self.workers,
            "a validation runs in used workers",
        )
        self.workers[group] = ranks
        self.busy[group] = _Busy(
            number=number,
            plan=plan.key,
            nodes=ranks,
            until=self.now
            + run.deadline_seconds
            + 60 * spec.cluster.start_minutes
            + _REPORT_SECONDS,
        )

    def _is_placed(self, run: Run, listed: dict[str, Node]) -> None:
        number, plan = run.request.number, run.request.plan
        assert run.placement is not None
        ranks = dict(run.placement.parts)
        _require(sum(ranks.values()) == plan.world_size, f"ranks of trial {number}: {ranks}")
        share = self.job.spec.cluster.share_nodes
        for name, count in ranks.items():
            _require(name in listed, f"trial {number} runs on {name}, which is not up")
            lost_at = self.lost_nodes.get(name, -1e9)
            _require(
                self.now - lost_at > _AVOID_SECONDS, f"trial {number} runs on {name}, just lost"
            )
            node = listed[name]
            others = [
                other.get(name, 0) for group, other in self.workers.items() if group != run.group
            ]
            _require(share or not any(others), f"two groups have workers on {name}")
            _require(sum(others) + count <= node.slots, f"{name} has more ranks than slots")
        died_on = self.died_on.get(plan.key, frozenset())
        avoided = died_on & ranks.keys()
        if avoided and isinstance(self.under_way[number].reason, Retry):
            _require(
                not self._has_room(plan, [one for one in listed.values() if one.id not in died_on]),
                f"trial {number} runs on {sorted(avoided)}, where it died, and others have room",
            )

    def _has_room(self, plan: Plan, nodes: Iterable[Node]) -> bool:
        """Returns True if a plan has room on these nodes, which idle workers leave."""
        room = 0
        for node in nodes:
            held = sum(busy.nodes.get(node.id, 0) for busy in self.busy.values())
            free = node.slots - held if self.job.spec.cluster.share_nodes or not held else 0
            is_back = self.now - self.lost_nodes.get(node.id, -math.inf) > _BACK_SECONDS
            room += (free - free % plan.tensor) * is_back
        return room >= plan.world_size

    def group_ended(self, group: str) -> None:
        """Forgets a group that ended, and takes note of where its trial died."""
        if (busy := self._free(group)) is not None:
            self.died_on[busy.plan] = frozenset(busy.nodes)
        self.workers.pop(group, None)

    def reported(self, report: TrialFinished) -> None:
        """Takes note that a group is free, before its report is handled."""
        busy = self._free(report.group)
        assert busy is not None
        self.lost_nodes |= dict.fromkeys(report.lost_nodes, self.now)
        if report.lost_nodes:
            self.losses[busy.plan] += 1
            self.on_lost_nodes.add(busy.number)
        elif crashed(report.outcome, *_LOST):
            self.died_on[busy.plan] = frozenset(busy.nodes)
        if report.workers_ended:
            self.workers.pop(report.group, None)

    def _free(self, group: str) -> _Busy | None:
        busy = self.busy.pop(group, None)
        if busy is not None and not self.busy:
            self.idle_since = self.now
        return busy

    def killed(self, group: str) -> None:
        """Takes note that a group was killed as overdue: only one that is late may be."""
        busy = self.busy.get(group)
        _require(busy is not None, f"{group} is killed though it runs nothing")
        assert busy is not None
        _require(self.now >= busy.until - _REPORT_SECONDS, f"{group} is killed before its time")
        self.group_ended(group)

    def event(self, event: Event) -> None:
        """Checks an event that the callbacks hear."""
        match event:
            case TrialStarted():
                self._starts(event)
            case TrialEnded(record=record):
                self._ends(record)
            case SweepEnded():
                _require(self.ended is None, "the sweep ended twice")
                _require(not self.under_way, f"the sweep ended beside {list(self.under_way)}")
                self._agrees_with(event)
                self.ended = event

    def _starts(self, event: TrialStarted) -> None:
        budget, number = self.job.spec.budget, event.number
        _require(self.ended is None, f"trial {number} starts after the end of the sweep")
        _require(number not in self.under_way, f"trial {number} starts twice")
        self.under_way[number] = event
        self.pending[number] = self.now
        if event.validation:
            _require(len(self.under_way) == 1, "a validation starts beside trials")
            return
        _require(number not in self.numbers, f"number {number} is given twice")
        self.numbers.add(number)
        if isinstance(event.reason, ChecksMachine):
            suspect = event.reason.suspect
            _require(suspect in self.under_way, f"trial {number} checks {suspect}, which has ended")
            return
        if event.is_repeat:
            self._repeats(event)
            return
        self.interrupted.pop(event.plan.key, None)
        self.repeats = 0  # leaders may be others after it
        if not event.deadline_seconds:
            return  # it ran under a dead driver, and a check decides what is to blame
        running = sum(not one.is_repeat for one in self.under_way.values())
        taken = self.results_before + len(self.results) + running
        _require(taken <= budget.trials, f"{taken} trials of a budget of {budget.trials}")
        minutes = (self.now - self.started_at) / 60
        longest = budget.minutes + self.job.spec.study.wait_minutes  # if the study is unavailable
        _require(minutes <= longest, f"trial {number} starts after {minutes} minutes")
        if budget.gpu_hours is not None:
            _require(self.rank_hours < budget.gpu_hours + 1e-6, "the GPU hours are used up")

    def _repeats(self, event: TrialStarted) -> None:
        self.repeats += 1
        most = self.job.spec.validation.repeats
        _require(self.repeats <= most, f"{self.repeats} repeats where {most} are allowed")
        others = [one for one in self.under_way.values() if not one.is_repeat]
        _require(not others, f"trial {event.number} repeats a plan before the search has ended")

    def _ends(self, record: Record) -> None:
        number = record.number
        if not crashed(record.outcome, "driver_lost"):  # that is of an earlier driver's trial
            _require(number in self.under_way, f"trial {number} ended without having started")
        started = self.under_way.pop(number, None)
        self._is_interrupted(record, self.pending.pop(number, None))
        self.stuck_since.pop(number, None)
        _require(
            started is None or started.plan == record.plan, f"trial {number} ended as another plan"
        )
        is_again = record.validation or measures_again(record.reason)
        if is_again or isinstance(record.outcome, Cancelled):
            return
        _require(record.plan.key not in self.results, f"plan of trial {number} has two results")
        self.results[record.plan.key] = record
        seconds = record.ended_at - record.started_at
        self.rank_hours += record.plan.world_size * seconds / 3600

    def _is_interrupted(self, record: Record, waits_since: float | None) -> None:
        """Checks why a trial has no result, if it has none, and that it may run again."""
        number, plan, outcome = record.number, record.plan.key, record.outcome
        cause = outcome.cause if isinstance(outcome, Cancelled) else None
        if number in self.on_lost_nodes:
            self.on_lost_nodes.remove(number)
            _require(
                isinstance(cause, NodesLost) == (self.losses[plan] <= _MOST_LOSSES),
                f"trial {number} ends as {outcome.kind} after {self.losses[plan]} losses of nodes",
            )
        if isinstance(cause, NoRoom):
            _require(waits_since is not None, f"trial {number} had room, and ends without")
            waited = self.now - max(waits_since or 0.0, self.idle_since)
            _require(
                waited > 60 * self.job.spec.cluster.wait_minutes - 1,
                f"trial {number} ends after {waited:.0f} seconds without room",
            )
        if cause is not None and not record.validation and not measures_again(record.reason):
            self.interrupted[plan] = number

    def _agrees_with(self, end: SweepEnded) -> None:
        """Checks that a sweep ends for the reason that it gives, and forgets no trial."""
        budget, results = self.job.spec.budget, self.results_before + len(self.results)
        match end.reason:
            case BudgetSpent(limit="trials"):
                holds = results >= budget.trials
            case BudgetSpent(limit="minutes"):
                holds = self.now - self.started_at > 60 * budget.minutes - 1
            case AllTried():
                holds = len(self.tried) == len(self.job.space.table)
            case _:
                holds = True
        _require(holds, f"the sweep ends as {end.reason.kind} after {results} trials")
        _require(
            not self.interrupted or isinstance(end.reason, _MAY_FORGET),
            f"the sweep ends before trials {list(self.interrupted.values())} run again",
        )

    def waits(self, *, has_ended: bool) -> None:
        """Checks that nothing waits for longer than it may."""
        if self.now - self.looked_at > _DRAIN_SECONDS:
            self.drained_since = None  # it could not act: another driver waited for the study
        self.looked_at = self.now
        if has_ended and not self.busy:
            self.drained_since = self.drained_since or self.now
            waited = self.now - self.drained_since
            _require(waited < _DRAIN_SECONDS, "a driver whose groups are idle does not end")
        for busy in self.busy.values():
            _require(self.now <= busy.until + 60, f"trial {busy.number} is awaited for ever")
        spec = self.job.spec
        limit = 60 * (spec.cluster.wait_minutes + spec.study.wait_minutes) + 120
        for number in self.pending:
            if not self.busy:
                since = self.stuck_since.setdefault(number, self.now)
                _require(self.now - since < limit, f"trial {number} waits for room for ever")


@final
class SweepChecks:
    """Checks over all drivers of a study."""

    def __init__(self) -> None:
        self.deaths: Counter[str] = Counter()  # of a plan's trials, through machines, by plan
        self.alone: Counter[str] = Counter()  # deaths of drivers with one trial, by its plan
        self._failed_at: dict[str, float] = {}  # last death of a plan, by plan
        self._measured_at = math.inf  # first stored measurement
        self._went_well_at = -1.0  # last trial that did not die
        self.reported: defaultdict[int, list[Outcome]] = defaultdict(list)
        self.acknowledged: dict[int, Outcome] = {}
        self.closed: set[int] = set()  # trials that a driver closed as its head was lost

    def trial_ended(self, started: TrialStarted, now: float, outcome: Outcome | None) -> None:
        """Takes note of how a trial ended, before it is handled; None: with its group."""
        if outcome is None or crashed(outcome, *_LOST):
            self._failed_at[started.plan.key] = now
            return
        self._went_well_at = now

    def blamed(self, record: Record, now: float) -> None:
        """Checks that a plan is blamed for a death only after its trials died twice.

        If another plan was measured before, it must have run once more since then.
        """
        outcome, key = record.outcome, record.plan.key
        if crashed(outcome, "driver_lost"):
            _require(self.alone[key] >= 2, "a plan is blamed that was not alone when drivers died")
        if record.validation:
            return
        if crashed(outcome, *_LOST):
            failed_at = self._failed_at.get(key, -1.0)
            could_check = self._measured_at < failed_at and not measures_again(record.reason)
            needed = crashed(outcome, *MACHINE) or could_check
            _require(
                not needed or self._went_well_at >= failed_at,
                f"plan of trial {record.number} is blamed, and the machine was not checked",
            )
        if crashed(outcome, "worker_died", "driver_lost", "device_error"):
            deaths = self.deaths[key]
            _require(deaths >= 2, f"plan of trial {record.number} is blamed after {deaths} deaths")
        if isinstance(outcome, Measured):
            self._measured_at = min(self._measured_at, now)

    def study(self, records: Iterable[Record]) -> None:
        """Compares what the study holds with what groups reported."""
        plans: set[str] = set()
        stored: dict[int, Record] = {}
        for record in records:
            if not measures_again(record.reason):
                number = record.number
                _require(record.plan.key not in plans, f"plan of trial {number} is stored twice")
                plans.add(record.plan.key)
            stored[record.number] = record
            outcome = record.outcome
            made_up = crashed(outcome, "driver_lost", "worker_died")
            _require(
                made_up or outcome in self.reported[record.number],
                f"the study invented {outcome.kind} of trial {record.number}",
            )
        for number, outcome in self.acknowledged.items():
            _require(
                number in stored and stored[number].outcome == outcome,
                f"the study lost {outcome.kind} of trial {number}",
            )


def check_winner(
    best: Record | None,
    records: Iterable[Record],
    validations: Iterable[Record],
    job: Job,
    failed: Iterable[int],
) -> None:
    """Checks that the best plan is feasible, and that none is faster beyond doubt.

    Args:
        best: What the controller says.
        records: All trials.
        validations: All validations.
        job: The job, with objective and headroom.
        failed: The trials whose validation failed.
    """
    usable = LIMIT_BYTES * (1 - job.spec.objective.headroom)
    first: dict[str, Record] = {}
    rates: defaultdict[str, list[float]] = defaultdict(list)
    repeated, out, doubted = set[str](), set[str](), set(failed)
    for record in (*records, *validations):
        plan, outcome, again = record.plan.key, record.outcome, measures_again(record.reason)
        if isinstance(outcome, Measured):
            rates[plan].append(math.log(outcome.samples_per_second.value))
            if record.validation:
                continue
            if again:
                repeated.add(plan)
            else:
                first[plan] = record
            if outcome.memory.peak_bytes > usable:
                out.add(plan)
        elif again:
            out.add(plan)
    candidates = {
        plan for plan, record in first.items() if plan not in out and record.number not in doubted
    }
    _require((best is None) == (not candidates), "there is a best plan, and none that is feasible")
    if best is None:
        return
    _require(best.plan.key in candidates, "the best is infeasible")
    if job.spec.objective.metric == "headroom":
        most = max(_free(first[plan]) for plan in candidates)
        _require(_free(first[best.plan.key]) + 0.02 >= most, "another plan has more memory free")
        return
    pool = candidates & repeated or candidates
    means = {plan: sum(rates[plan]) / len(rates[plan]) for plan in candidates}
    top = max(pool, key=means.__getitem__)
    degrees = sum(len(values) - 1 for values in rates.values())
    margin = 0.031  # of two intervals of 1.5 %
    if degrees:
        squares = sum((one - sum(v) / len(v)) ** 2 for v in rates.values() for one in v)
        deviation = math.sqrt((squares + 1e-4) / (degrees + 1))
        share = 1 / len(rates[best.plan.key]) + 1 / len(rates[top])
        margin += float(stats.t.ppf(0.975, degrees + 1)) * deviation * math.sqrt(share)
    _require(
        means[best.plan.key] + margin + job.spec.objective.interval >= means[top],
        "another plan is faster beyond doubt",
    )


def _free(record: Record) -> float:
    assert isinstance(record.outcome, Measured)
    return 1 - record.outcome.memory.peak_bytes / LIMIT_BYTES
