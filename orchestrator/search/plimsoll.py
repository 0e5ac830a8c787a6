"""Plimsoll's sampler: Bayesian optimization over the legal plans of a space."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from orchestrator.core.inputs import PlanProposed
from orchestrator.core.objective import Objective, memory_limit_of
from orchestrator.core.reasons import Promising
from orchestrator.core.records import Record
from orchestrator.core.repeats import FINALISTS, is_repeat
from orchestrator.core.speeds import Speeds
from orchestrator.core.state import Flags, SweepState
from orchestrator.core.trial_noise import TrialNoise
from orchestrator.search.acquisition import SearchObjective
from orchestrator.search.base import AbstractProposer, dominated_rows
from orchestrator.search.encoding import Distributions, distributions, position, table_features
from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import Observation, observation_of, with_noise
from orchestrator.search.search import CandidatePool, Search, Suggestion
from orchestrator.search.surrogate import Rows
from orchestrator.search.transfer import EarlierStudy, transferred_records
from search_spaces.costs.forecast import SearchPrior
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.space import Space
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import ObjectiveSpec
from search_spaces.trial import Measured

# Start of a new worker group, measured with Ray 2.60 (benchmarks/results/trial_overhead.json)
RESTART_SECONDS = 12.0
_SETUP_SECONDS = 3.0  # of a trial on a running worker group, before any has been measured
_EXTRA_STEPS = 3  # beyond the measured ones: warm-up and the step of the longest samples
MAX_CANDIDATES = 200_000  # of a larger space, the most promising plans and a random sample
_OVER_LIMIT_PENALTY = 10.0  # on the log rate, per unit of the log share above 0
_MEMORY_STD = 0.7  # prior of the effect of a knob's whole range on memory, and of the offset


def trial_seconds(
    table: PlanTable,
    objective: ObjectiveSpec,
    step_seconds: Numbers | None,
    records: Sequence[Record],
    running: Plan | None,
) -> Numbers:
    """Returns the expected duration of a trial of each plan of a table, in seconds.

    Args:
        table: The plans.
        objective: Says how much of each is measured.
        step_seconds: Forecast duration of a step of each plan, None without a forecast.
        records: Records of the study, whose costs improve the estimate.
        running: A plan that the running worker group can execute, None if there is no group.
    """
    costs = [one.outcome.costs for one in records if isinstance(one.outcome, Measured)]
    setups = [max(cost.total_seconds - cost.steps_seconds, 0.0) for cost in costs]
    setup = statistics.median(setups) if setups else _SETUP_SECONDS
    if step_seconds is None:
        typical = statistics.median(cost.steps_seconds for cost in costs) if costs else setup
        steps = np.full(len(table), typical)
    else:
        minimum = step_seconds * (objective.min_steps + _EXTRA_STEPS)
        steps = np.minimum(minimum, objective.max_seconds + _EXTRA_STEPS * step_seconds)
    if running is None:
        return setup + steps
    # what is fixed when a worker group starts: see `render_environment`
    ranks = table.column("data") * table.column("tensor") * table.column("pipeline")
    same: Flags = (ranks == running.world_size) & table.is_value("allocator", running.allocator)
    return setup + steps + RESTART_SECONDS * ~same


def search_objective(objective: Objective, table: PlanTable) -> SearchObjective:
    """Converts the objective to arrays over the plans of a table.

    All values are logarithms; prices are per second.
    """
    price, by_energy = None, objective.metric == "tokens_per_joule"
    if objective.price is not None or by_energy:  # without one, each rank takes the same
        ranks = table.column("tensor") * table.column("pipeline") * table.column("data")
        price = np.log((objective.price or 1.0) * ranks / 3600)
    bounds = [
        np.full(len(table), math.log(bound)) + (price if metric == "samples_per_price" else 0.0)
        for metric, bound in objective.lower_bounds
    ]
    return SearchObjective(
        of="room" if objective.metric == "headroom" else "rate",
        line=math.log1p(-objective.headroom),
        price=price if by_energy or objective.metric == "samples_per_price" else None,
        lower_bound=np.maximum.reduce(bounds) if bounds else None,
    )


@final
class PlimsollProposer(AbstractProposer):
    """Proposes plans by Bayesian optimization, with forecasts as the prior mean."""

    def __init__(
        self, space: Space, spec: SweepSpec, seed: int, earlier: Sequence[EarlierStudy] = ()
    ) -> None:
        """Makes a proposer for a sweep.

        Args:
            space: The plans to propose from.
            spec: The specification of the sweep.
            seed: Random seed.
            earlier: Other studies of the same job; their trials transfer where the hardware is
                the same.
        """
        self._earlier = earlier
        self._space = space
        self._spec = spec
        self._seed = seed
        self._searched = distributions(space)
        self._candidates: _CandidateSet | None = None
        self._undominated = np.ones(len(space.table), dtype=bool)
        self._checked = 0  # records that `_undominated` accounts for

    def propose(self, sweep: SweepState, prior: SearchPrior | None) -> PlanProposed:
        candidates, free = self._current(sweep, prior)
        choice, seconds = candidates.choose(sweep, free)
        plan = candidates.table.plan(choice.row)
        return PlanProposed(
            plan=plan,
            reason=self._reason(choice, plan, candidates),
            saving=choice.saving,
            seconds=seconds,
        )

    def regret_bound(self, sweep: SweepState, prior: SearchPrior | None) -> float | None:
        if not sweep.untried.any():
            return 1.0
        if self._spec.objective.metric == "tokens_per_joule":  # which no forecast tells
            return None
        candidates, free = self._current(sweep, prior)
        return candidates.search.regret_bound(candidates.observations, free[candidates.pool])

    def leaders(self, sweep: SweepState, prior: SearchPrior | None, count: int) -> tuple[Plan, ...]:
        candidates, noise = self._updated(sweep, prior), sweep.speeds.noise
        enough = math.log1p(self._spec.objective.interval)
        quantile = noise.quantile if noise.degrees >= FINALISTS else None
        rows = candidates.search.leaders(candidates.observations, count, enough, quantile)
        return tuple(map(candidates.table.plan, rows))

    def _current(self, sweep: SweepState, prior: SearchPrior | None) -> tuple[_CandidateSet, Flags]:
        """Returns the candidates, and marks the plans of the space that may be tried.

        At least one of the marked plans is a candidate.
        """
        candidates = self._updated(sweep, prior)
        free = sweep.untried & self._undominated
        if not free[candidates.pool].any():
            free = sweep.untried  # dominance is not certain
        if not free[candidates.pool].any():
            candidates = self._candidates = self._new_candidates(sweep, prior)
            candidates.learn(sweep.records, self._spec, self._earlier)
        return candidates, free

    def _updated(self, sweep: SweepState, prior: SearchPrior | None) -> _CandidateSet:
        """Brings candidates and dominance up to date with the forecasts and records."""
        if self._candidates is None or self._candidates.prior is not prior:
            self._candidates = self._new_candidates(sweep, prior)
        self._candidates.learn(sweep.records, self._spec, self._earlier)
        for record in sweep.records[self._checked :]:
            self._undominated[dominated_rows(self._space.table, record)] = False
        self._checked = len(sweep.records)
        return self._candidates

    def _new_candidates(self, sweep: SweepState, prospects: SearchPrior | None) -> _CandidateSet:
        table = self._space.table
        pool = np.arange(len(table))
        if len(table) > MAX_CANDIDATES:
            pool = self._subset(sweep, prospects)
            table = table.take(pool)
        prior = prospects.take(pool) if prospects is not None else None
        trend, trend_parts = _memory_trend(table, self._searched)
        options = CandidatePool(
            features=table_features(table, self._searched),
            log_rate=None if prior is None else prior.log_rate,
            log_share=trend if prior is None else prior.log_share,
            rate_parts=None if prior is None else prior.rate_parts,
            share_parts=trend_parts if prior is None else prior.share_parts,
            aim=search_objective(Objective.of(self._spec), table),
        )
        return _CandidateSet(
            table=table,
            pool=pool,
            prior=prospects,
            step_seconds=None if prior is None else prior.step_seconds,
            search=Search(options, self._seed),
        )

    def _subset(self, sweep: SweepState, prior: SearchPrior | None) -> Rows:
        """Chooses candidates of a very large space: tried, most promising, and random plans."""
        table, half = self._space.table, MAX_CANDIDATES // 2
        tried = [row for record in sweep.records for row in table.rows_of(record.plan)]
        free = np.flatnonzero(sweep.untried)
        rng = np.random.default_rng(self._seed)
        subsets = [np.array(tried, dtype=np.intp), rng.permutation(free)[:half]]
        if prior is not None:
            excess = np.maximum(prior.log_share, 0.0)
            forecast = (prior.log_rate - excess * _OVER_LIMIT_PENALTY)[free]
            subsets.append(free[np.argsort(-forecast)[:half]])
        return np.unique(np.concatenate(subsets))

    def _reason(self, choice: Suggestion, plan: Plan, candidates: _CandidateSet) -> Promising:
        best = plan if choice.best is None else candidates.table.plan(choice.best)
        changes = tuple(
            (name, getattr(plan, name))
            for name in self._searched
            if getattr(plan, name) != getattr(best, name)
        )
        return Promising(
            metric=Objective.of(self._spec).metric,
            fits=choice.fits,
            reaches=choice.reaches,
            gain=choice.gain,
            changes=changes,
            forecast=candidates.prior is not None,
            measured_by=candidates.measured_by.get(choice.row),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class _CandidateSet:
    """Candidates with their forecasts and observations, and the search over them."""

    table: PlanTable
    pool: Rows  # row in the space of each candidate
    prior: SearchPrior | None
    step_seconds: Numbers | None
    search: Search
    measured_by: dict[int, str] = field(default_factory=dict)  # another study, by candidate
    _own: list[Observation] = field(default_factory=list)
    _transferred: list[Observation] = field(default_factory=list)
    _compared: bool = False  # this study's fingerprint with those of the others
    _numbers: set[int] = field(default_factory=set)  # of the records that are observed
    _noise: TrialNoise | None = None  # as repeats show it; None before any
    _rows: dict[Plan, list[int]] = field(default_factory=dict)

    @property
    def observations(self) -> list[Observation]:
        """Transferred observations, then this study's, the latest last."""
        observations = self._transferred + self._own
        return with_noise(observations, self._noise) if self._noise else observations

    def choose(self, sweep: SweepState, free: Flags) -> tuple[Suggestion, float]:
        """Chooses a candidate, with the expected seconds of its trial.

        `free` marks the plans of the space that may be tried.
        """
        objective, last = sweep.spec.objective, _last_plan(sweep)
        seconds = trial_seconds(self.table, objective, self.step_seconds, sweep.records, last)
        running = [row for trial in sweep.running for row in self.rows_of(trial.plan)]
        choice = self.search.choose(self.observations, free[self.pool], running, seconds)
        return choice, float(seconds[choice.row])

    def learn(
        self, records: Sequence[Record], spec: SweepSpec, earlier: Sequence[EarlierStudy]
    ) -> None:
        """Observes new records, and other studies once this one has a fingerprint to compare."""
        for record in records:
            if record.number not in self._numbers:
                self._numbers.add(record.number)
                self._own += self._observations_of(record, spec)
                if is_repeat(record):
                    noise = Speeds.of(records, (), Objective.of(spec)).noise
                    self._noise = noise if noise.degrees else None
        latest = None if self._compared else _latest(records)
        if latest is None or latest.fingerprint is None:
            return
        self._compared = True
        for number, study in enumerate(earlier, start=1):
            for record, std in transferred_records(study, latest.fingerprint):
                for transferred in self._transferred_from(record, latest, spec):
                    self._transferred.append(replace(transferred, study=number, transfer_std=std))
                    if transferred.measured:
                        self.measured_by[transferred.row] = study.name

    def _transferred_from(
        self, record: Record, latest: Record, spec: SweepSpec
    ) -> Iterator[Observation]:
        """Yields what another study's record says here, where the memory limit may be another."""
        effective = Objective.of(spec).effective_limit
        other_limit, limit = (
            found and effective(found) for found in map(memory_limit_of, (record, latest))
        )
        shift = math.log(other_limit / limit) if other_limit and limit else 0.0
        for observation in self._observations_of(record, spec):
            share = None if observation.log_share is None else observation.log_share + shift
            yield replace(observation, log_share=share)

    def _observations_of(self, record: Record, spec: SweepSpec) -> Iterator[Observation]:
        for row in self.rows_of(record.plan):
            if (observation := observation_of(record, row, spec)) is not None:
                yield observation

    def rows_of(self, plan: Plan) -> list[int]:
        """Returns the rows of a plan, cached, since each look-up scans the table."""
        if plan not in self._rows:
            self._rows[plan] = self.table.rows_of(plan).tolist()
        return self._rows[plan]


def _memory_trend(table: PlanTable, searched: Distributions) -> tuple[Numbers, Numbers]:
    """Returns a prior of memory without a forecast, from each knob's direction of memory.

    Returns:
        Logarithms of the peak over some limit, and the standard deviation of each part of them.
    """
    parts = [np.ones(len(table))]
    trend = np.zeros(len(table))
    for knob in KNOBS:
        if knob.memory and knob.name in searched:
            places = [position(searched[knob.name], value) for value in table.values[knob.name]]
            effect = knob.memory * np.array(places)[table.codes[knob.name]]
            trend = trend + effect
            parts.append(effect)
    return trend - trend.mean(), _MEMORY_STD * np.stack(parts, axis=1)


def _latest(records: Sequence[Record]) -> Record | None:
    """Returns the last record that has a fingerprint and a memory limit."""
    complete = (
        record for record in reversed(records) if record.fingerprint and memory_limit_of(record)
    )
    return next(complete, None)


def _last_plan(sweep: SweepState) -> Plan | None:
    if sweep.running:
        return sweep.running[-1].plan
    last = max(sweep.records, key=lambda record: record.ended_at, default=None)
    return None if last is None else last.plan
