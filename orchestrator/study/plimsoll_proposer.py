"""Plimsoll's own search on a space of legal plans."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.hopeless import hopeless_rows
from orchestrator.core.objective import Goal, limit_of
from orchestrator.search.evidence import Sight
from orchestrator.search.options import Choice, Options
from orchestrator.search.search import Search
from orchestrator.study.aims import aim_of
from orchestrator.study.earlier import EarlierStudy, Lesson, lessons
from orchestrator.study.features import place, table_features
from orchestrator.study.parameters import Distributions, distributions
from orchestrator.study.plimsoll_sampler import sentence
from orchestrator.study.proposals import AbstractProposer, Known, Proposal
from orchestrator.study.sights import sight_of
from orchestrator.study.trial_seconds import TrialSeconds
from search_spaces.forecast.prospects import Prospects
from search_spaces.knobs import KNOBS
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.record import Record
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec

MOST = 200_000  # plans that are searched; of more, those that promise most and some by chance
_TOO_LARGE = 10.0  # what a peak over the limit costs a plan's promise, as logarithms
_DOUBT = 0.7  # deviation of what a knob does to memory from one end to the other, and of the level
# For so many trials under way, one more is chosen from each fit: what the last of them is chosen
# without are the results of 2 % of what runs, and the fit's time is shared by all
_PER_CHOICE = 50
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]
Numbers = NDArray[np.float64]


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
        self._ground: _Ground | None = None
        self._hopeful = np.ones(len(space.table), dtype=bool)
        self._judged = 0  # records that have told which plans are hopeless

    def propose(self, known: Known) -> Proposal:
        ground, free = self._open(known)
        choice, seconds = ground.ready(free) or ground.choose(known, free)
        plan = ground.table.plan(choice.row)
        return Proposal(
            plan=plan,
            why=self._why(choice, plan, ground),
            saving=choice.saving,
            seconds=seconds,
        )

    def left(self, known: Known) -> float | None:
        ground, free = self._open(known)
        return ground.search.left(ground.sights, free[ground.pool])

    def _open(self, known: Known) -> tuple[_Ground, Flags]:
        """The ground of today, and which of the space's plans may be tried; some lie on it."""
        ground = self._learned(known)
        free = known.free & self._hopeful
        if not free[ground.pool].any():
            free = known.free  # that a plan is hopeless is no proof
        if not free[ground.pool].any():
            ground = self._ground = self._begun(known)
            ground.learn(known.records, self._spec, self._earlier)
        return ground, free

    def _learned(self, known: Known) -> _Ground:
        """The ground of today, with what all records have shown."""
        if self._ground is None or self._ground.prospects is not known.prospects:
            self._ground = self._begun(known)
        self._ground.learn(known.records, self._spec, self._earlier)
        for record in known.records[self._judged :]:
            self._hopeful[hopeless_rows(self._space.table, record)] = False
        self._judged = len(known.records)
        return self._ground

    def _begun(self, known: Known) -> _Ground:
        table, prospects = self._space.table, known.prospects
        pool = np.arange(len(table))
        if len(table) > MOST:
            pool = self._pooled(known)
            table = table.take(pool)
        told = prospects.take(pool) if prospects is not None else None
        rising, rises = _by_direction(table, self._searched)
        options = Options(
            features=table_features(table, self._searched),
            log_rate=None if told is None else told.log_rate,
            log_share=rising if told is None else told.log_share,
            rate_parts=None if told is None else told.rate_parts,
            share_parts=rises if told is None else told.share_parts,
            aim=aim_of(Goal.of(self._spec), table),
        )
        return _Ground(
            table=table,
            pool=pool,
            prospects=prospects,
            step_seconds=None if told is None else told.step_seconds,
            search=Search(options, self._seed),
            seconds=TrialSeconds(table, self._spec.objective),
        )

    def _pooled(self, known: Known) -> Rows:
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

    def _why(self, choice: Choice, plan: Plan, ground: _Ground) -> str:
        best = None if choice.best is None else ground.table.plan(choice.best)
        names = tuple(self._searched)
        told = {name: getattr(plan, name) for name in names}
        against = None if best is None else {name: getattr(best, name) for name in names}
        blind = "" if ground.prospects is not None else "; without a forecast"
        why = sentence(choice, told, against, self._spec.objective.metric)
        return why + blind + ground.measured_before(choice.row)


class _Ground:
    """Candidates with their forecasts, and what was seen of them."""

    def __init__(
        self,
        *,
        table: PlanTable,
        pool: Rows,
        prospects: Prospects | None,
        step_seconds: Numbers | None,
        search: Search,
        seconds: TrialSeconds,
    ) -> None:
        self.table = table
        self.pool = pool  # rows of the space
        self.prospects = prospects
        self.step_seconds = step_seconds
        self.search = search
        self.seconds = seconds
        self._own: list[Sight] = []
        self._others: list[Sight] = []
        self._compared: set[str] = set()  # accelerators of which it is known what they are
        self._before: dict[int, str] = {}  # candidates that another study has measured
        self._seen: set[int] = set()
        self._rows: dict[Plan, list[int]] = {}
        self._ready: list[tuple[Choice, float]] = []  # chosen with the last one that was taken

    @property
    def sights(self) -> list[Sight]:
        """What is known: that of other studies first, the latest last."""
        return self._others + self._own

    def ready(self, free: Flags) -> tuple[Choice, float] | None:
        """A choice of the last fit that may still be tried; None if there is none.

        Args:
            free: Which of the space's candidates may be.
        """
        while self._ready:
            choice, seconds = self._ready.pop(0)
            if free[self.pool[choice.row]]:
                return choice, seconds
        return None

    def choose(self, known: Known, free: Flags) -> tuple[Choice, float]:
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
                for lesson in lessons([study], ours.fingerprint):
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

    def _learn_from(self, lesson: Lesson, study: int, ours: Record, spec: SweepSpec) -> None:
        theirs, limit = limit_of(lesson.record), limit_of(ours)
        moved = math.log(theirs / limit) if theirs and limit else 0.0
        # a study of one kind of nodes alone does not name it
        plan = replace(lesson.record.plan, accelerator=ours.plan.accelerator)
        for sight in self._sights_of(replace(lesson.record, plan=plan), spec):
            share = None if sight.log_share is None else sight.log_share + moved
            told = replace(sight, study=study, doubt=lesson.doubt, log_share=share)
            self._others.append(told)
            if told.measured:
                self._before[told.row] = lesson.study

    def _sights_of(self, record: Record, spec: SweepSpec) -> Iterator[Sight]:
        for row in self.rows_of(record.plan):
            if (sight := sight_of(record, row, spec)) is not None:
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


def _there(known: Known) -> Plan | None:
    """The plan that ran last: its processes are there."""
    if known.running:
        return known.running[-1]
    last = max(known.records, key=lambda record: record.ended_at, default=None)
    return None if last is None else last.plan
