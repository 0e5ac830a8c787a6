"""Plimsoll's own search on a space of legal plans."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.objective import Objective, limit_of
from orchestrator.search.acquisition import SearchObjective
from orchestrator.search.base import AbstractProposer, Proposal, SearchState, dominated_rows
from orchestrator.search.encoding import Distributions, distributions, place, table_features
from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import Observation, observation_of
from orchestrator.search.plimsoll_sampler import sentence
from orchestrator.search.search import CandidatePool, Search, Suggestion
from orchestrator.search.transfer import EarlierStudy, TransferredTrial, transferred_trials
from search_spaces.costs.forecast import SearchPrior
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import ObjectiveSpec
from search_spaces.trial import Costs, Measured, Record

# Another group of workers: measured with Ray 2.60 (benchmarks/results/trial_overhead.json)
RESTART_SECONDS = 12.0
_BUILD_SECONDS = 3.0  # while no trial has told
_WARM_UP = 3  # steps beside those that count: the worst one and the warm-up
# what is settled when workers are started: see `render_environment`
_PROCESSES = ("data", "tensor", "pipeline", "allocator")
MOST = 200_000  # plans that are searched; of more, those that promise most and some by chance
_TOO_LARGE = 10.0  # what a peak over the limit costs a plan's promise, as logarithms
_DOUBT = 0.7  # deviation of what a knob does to memory from one end to the other, and of the level
# For so many trials under way, one more is chosen from each fit: what the last of them is chosen
# without are the results of 2 % of what runs, and the fit's time is shared by all
_PER_CHOICE = 50
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]


class TrialCost:
    """Expected seconds of a trial of each plan of a table."""

    def __init__(self, table: PlanTable, objective: ObjectiveSpec) -> None:
        """Knows no forecast yet."""
        self._objective = objective
        self._world = np.prod([table.column(name) for name in _PROCESSES[:3]], axis=0)
        self._table = table

    def of(
        self, step_seconds: Numbers | None, records: Sequence[Record], there: Plan | None
    ) -> Numbers:
        """Of shape (plans,).

        Args:
            step_seconds: Forecast seconds of a step of each, None without a forecast.
            records: Of the study.
            there: A plan that runs in the processes that are there, None if there are none.
        """
        told = tuple(_costs(records))
        build = statistics.median(_unsteady(told)) if told else _BUILD_SECONDS
        if step_seconds is None:
            usual = statistics.median(cost.steps_seconds for cost in told) if told else build
            steps = np.full(len(self._table), usual)
        else:
            wanted = step_seconds * (self._objective.min_steps + _WARM_UP)
            steps = np.minimum(wanted, self._objective.max_seconds + _WARM_UP * step_seconds)
        return build + steps + RESTART_SECONDS * self._needs_others(there)

    def _needs_others(self, there: Plan | None) -> NDArray[np.bool_]:
        if there is None:
            return np.zeros(len(self._table), dtype=bool)
        others: NDArray[np.bool_] = self._world != there.world_size
        return others | ~self._table.is_value("allocator", there.allocator)


def _costs(records: Sequence[Record]) -> list[Costs]:
    return [record.outcome.costs for record in records if isinstance(record.outcome, Measured)]


def _unsteady(told: Sequence[Costs]) -> list[float]:
    return [max(cost.total_seconds - cost.steps_seconds, 0.0) for cost in told]


def search_objective(goal: Objective, table: PlanTable) -> SearchObjective:
    """The aim among the plans of the table; logarithms, those of prices for an hour."""
    price = None
    prices = [goal.price_on(accelerator) for accelerator in table.values["accelerator"]]
    if all(prices):
        ranks = table.column("tensor") * table.column("pipeline") * table.column("data")
        each = np.array(prices, dtype=float)[table.codes["accelerator"]]
        price = np.log(each * ranks / 3600)
    bounds = [
        np.full(len(table), math.log(least)) + (price if metric == "samples_per_price" else 0.0)
        for metric, least in goal.lower_bounds
    ]
    return SearchObjective(
        of="room" if goal.metric == "headroom" else "rate",
        line=math.log1p(-goal.headroom),
        price=price if goal.metric == "samples_per_price" else None,
        lower_bound=np.maximum.reduce(bounds) if bounds else None,
    )


@final
class PlimsollProposer(AbstractProposer):
    """Forecasts are its prior, records its evidence: see `orchestrator.search`."""

    def __init__(
        self, space: Space, spec: SweepSpec, seed: int, earlier: Sequence[EarlierStudy] = ()
    ) -> None:
        """Learns nothing yet.

        Args:
            space: Whose plans are proposed.
            spec: The sweep's.
            seed: Of what is drawn.
            earlier: Other studies of the same job, evidence as far as they ran on the same.
        """
        self._earlier = earlier
        self._space = space
        self._spec = spec
        self._seed = seed
        self._searched = distributions(space)
        self._ground: _CandidateSet | None = None
        self._hopeful = np.ones(len(space.table), dtype=bool)
        self._judged = 0  # records that have told which plans are hopeless

    def propose(self, known: SearchState) -> Proposal:
        ground, free = self._open(known)
        choice, seconds = ground.ready(free) or ground.choose(known, free)
        plan = ground.table.plan(choice.row)
        return Proposal(
            plan=plan,
            why=self._why(choice, plan, ground),
            saving=choice.saving,
            seconds=seconds,
        )

    def regret_bound(self, known: SearchState) -> float | None:
        ground, free = self._open(known)
        return ground.search.regret_bound(ground.sights, free[ground.pool])

    def _open(self, known: SearchState) -> tuple[_CandidateSet, Flags]:
        """The ground of today, and which of the space's plans may be tried; some lie on it."""
        ground = self._learned(known)
        free = known.free & self._hopeful
        if not free[ground.pool].any():
            free = known.free  # that a plan is hopeless is no validation
        if not free[ground.pool].any():
            ground = self._ground = self._begun(known)
            ground.learn(known.records, self._spec, self._earlier)
        return ground, free

    def _learned(self, known: SearchState) -> _CandidateSet:
        """The ground of today, with what all records have shown."""
        if self._ground is None or self._ground.prospects is not known.prospects:
            self._ground = self._begun(known)
        self._ground.learn(known.records, self._spec, self._earlier)
        for record in known.records[self._judged :]:
            self._hopeful[dominated_rows(self._space.table, record)] = False
        self._judged = len(known.records)
        return self._ground

    def _begun(self, known: SearchState) -> _CandidateSet:
        table, prospects = self._space.table, known.prospects
        pool = np.arange(len(table))
        if len(table) > MOST:
            pool = self._pooled(known)
            table = table.take(pool)
        told = prospects.take(pool) if prospects is not None else None
        rising, rises = _by_direction(table, self._searched)
        options = CandidatePool(
            features=table_features(table, self._searched),
            log_rate=None if told is None else told.log_rate,
            log_share=rising if told is None else told.log_share,
            rate_parts=None if told is None else told.rate_parts,
            share_parts=rises if told is None else told.share_parts,
            aim=search_objective(Objective.of(self._spec), table),
        )
        return _CandidateSet(
            table=table,
            pool=pool,
            prospects=prospects,
            step_seconds=None if told is None else told.step_seconds,
            search=Search(options, self._seed),
            seconds=TrialCost(table, self._spec.objective),
        )

    def _pooled(self, known: SearchState) -> Rows:
        """Some of too many plans: those that were tried, the most promising, some by chance."""
        table, half = self._space.table, MOST // 2
        tried = [row for record in known.records for row in table.rows_of(record.plan)]
        free = np.flatnonzero(known.free)
        rng = np.random.default_rng(self._seed)
        chosen = [np.array(tried, dtype=np.intp), rng.permutation(free)[:half]]
        if known.prospects is not None:
            told = known.prospects
            promise = (told.log_rate - np.maximum(told.log_share, 0.0) * _TOO_LARGE)[free]
            chosen.append(free[np.argsort(-promise)[:half]])
        return np.unique(np.concatenate(chosen))

    def _why(self, choice: Suggestion, plan: Plan, ground: _CandidateSet) -> str:
        best = None if choice.best is None else ground.table.plan(choice.best)
        names = tuple(self._searched)
        told = {name: getattr(plan, name) for name in names}
        against = None if best is None else {name: getattr(best, name) for name in names}
        blind = "" if ground.prospects is not None else "; without a forecast"
        why = sentence(choice, told, against, self._spec.objective.metric)
        return why + blind + ground.measured_before(choice.row)


class _CandidateSet:
    """Candidates with their forecasts, and what was seen of them."""

    def __init__(
        self,
        *,
        table: PlanTable,
        pool: Rows,
        prospects: SearchPrior | None,
        step_seconds: Numbers | None,
        search: Search,
        seconds: TrialCost,
    ) -> None:
        self.table = table
        self.pool = pool  # rows of the space
        self.prospects = prospects
        self.step_seconds = step_seconds
        self.search = search
        self.seconds = seconds
        self._own: list[Observation] = []
        self._others: list[Observation] = []
        self._compared: set[str] = set()  # accelerators of which it is known what they are
        self._before: dict[int, str] = {}  # candidates that another study has measured
        self._seen: set[int] = set()
        self._rows: dict[Plan, list[int]] = {}
        self._ready: list[tuple[Suggestion, float]] = []  # chosen with the last one that was taken

    @property
    def sights(self) -> list[Observation]:
        """What is known: that of other studies first, the latest last."""
        return self._others + self._own

    def ready(self, free: Flags) -> tuple[Suggestion, float] | None:
        """A choice of the last fit that may still be tried; None if there is none.

        Args:
            free: Which of the space's candidates may be.
        """
        while self._ready:
            choice, seconds = self._ready.pop(0)
            if free[self.pool[choice.row]]:
                return choice, seconds
        return None

    def choose(self, known: SearchState, free: Flags) -> tuple[Suggestion, float]:
        """The best candidate, and what its trial is expected to take; others are kept ready."""
        seconds = self.seconds.of(self.step_seconds, known.records, _there(known))
        choices = self.search.several(
            1 + len(known.running) // _PER_CHOICE,
            self.sights,
            free[self.pool],
            [row for plan in known.running for row in self.rows_of(plan)],
            seconds,
        )
        self._ready = [(choice, float(seconds[choice.row])) for choice in choices]
        return self._ready.pop(0)

    def learn(
        self, records: Sequence[Record], spec: SweepSpec, earlier: Sequence[EarlierStudy]
    ) -> None:
        """Takes note of each record once, and of other studies as soon as they compare."""
        for record in records:
            if record.number not in self._seen:
                self._seen.add(record.number)
                self._own += self._sights_of(record, spec)
        for kind in self.table.values["accelerator"]:
            ours = _latest(records, kind)
            if kind in self._compared or ours is None or ours.fingerprint is None:
                continue
            self._compared.add(kind)
            for number, study in enumerate(earlier, start=1):
                for lesson in transferred_trials([study], ours.fingerprint):
                    if lesson.record.plan.accelerator in ("", kind):
                        self._learn_from(lesson, number, ours, spec)

    def measured_before(self, row: int) -> str:
        """What to add to a reason if another study has measured the candidate."""
        study = self._before.get(row)
        return (
            f"; study {study} measured it before, now it is held against this one's"
            if study
            else ""
        )

    def _learn_from(
        self, lesson: TransferredTrial, study: int, ours: Record, spec: SweepSpec
    ) -> None:
        theirs, limit = limit_of(lesson.record), limit_of(ours)
        moved = math.log(theirs / limit) if theirs and limit else 0.0
        # a study of one kind of nodes alone does not name it
        plan = replace(lesson.record.plan, accelerator=ours.plan.accelerator)
        for sight in self._sights_of(replace(lesson.record, plan=plan), spec):
            share = None if sight.log_share is None else sight.log_share + moved
            told = replace(sight, study=study, transfer_std=lesson.transfer_std, log_share=share)
            self._others.append(told)
            if told.measured:
                self._before[told.row] = lesson.study

    def _sights_of(self, record: Record, spec: SweepSpec) -> Iterator[Observation]:
        for row in self.rows_of(record.plan):
            if (sight := observation_of(record, row, spec)) is not None:
                yield sight

    def rows_of(self, plan: Plan) -> list[int]:
        """The candidates that are this plan; looked up once, since to find them is to read all."""
        if plan not in self._rows:
            self._rows[plan] = self.table.rows_of(plan).tolist()
        return self._rows[plan]


def _by_direction(table: PlanTable, searched: Distributions) -> tuple[Numbers, Numbers]:
    """What memory does where nothing is forecast: it grows and shrinks with what is known to.

    Returns:
        Logarithms of the peak over some limit, and by how much they may be off, part by part.
    """
    parts = [np.ones(len(table))]
    expected = np.zeros(len(table))
    for knob in KNOBS:
        if knob.memory and knob.name in searched:
            places = [place(searched[knob.name], value) for value in table.values[knob.name]]
            moved = knob.memory * np.array(places)[table.codes[knob.name]]
            expected = expected + moved
            parts.append(moved)
    return expected - expected.mean(), _DOUBT * np.stack(parts, axis=1)


def _latest(records: Sequence[Record], accelerator: str) -> Record | None:
    """The last record that tells what the nodes of a kind are and what a rank may hold there."""
    told = (
        record
        for record in reversed(records)
        if record.plan.accelerator == accelerator and record.fingerprint and limit_of(record)
    )
    return next(told, None)


def _there(known: SearchState) -> Plan | None:
    """The plan that ran last: its processes are there."""
    if known.running:
        return known.running[-1]
    last = max(known.records, key=lambda record: record.ended_at, default=None)
    return None if last is None else last.plan
