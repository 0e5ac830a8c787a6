"""One Optuna study as the truth of a sweep: asked for plans, told how they ended."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState

from orchestrator.core.events import SweepEnded
from orchestrator.core.objective import Objective, score
from orchestrator.search.base import AbstractProposer, Proposal, SearchState
from orchestrator.search.encoding import distributions, parameters, storable
from orchestrator.search.observations import constraints_of
from orchestrator.search.optuna_samplers import OptunaProposer
from orchestrator.search.plimsoll import PlimsollProposer
from orchestrator.search.transfer import EarlierStudy, sources
from orchestrator.study.identity import check_subject
from orchestrator.study.locks import AbstractLock, refuse_second_driver
from orchestrator.study.retry import Clock, RetryPolicy, Unavailable
from orchestrator.study.serialization import (
    RECORD,
    keep_end,
    keep_provenance,
    keep_validation,
    kept_provenances,
    kept_validations,
    record_of,
    record_to_json,
    records_of,
)
from orchestrator.study.storage import (
    brief_storage,
    open_storage,
    shown_url,
    storage_errors,
    storage_url,
)
from orchestrator.study.writer import Entry, StudyWriter, read_spool, spool, spool_file
from search_spaces.costs.forecast import SearchPrior
from search_spaces.errors import StudyError
from search_spaces.facts import Provenance
from search_spaces.plan import Plan
from search_spaces.plan_table import Candidates
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import Metric
from search_spaces.trial import Fingerprint, Measured, OutOfMemory, Record

VALUE_NAMES: Mapping[Metric, str] = {
    "samples_per_second": "samples per second",
    "samples_per_price": "samples per unit of price",
    "headroom": "share of memory left free",
}
_PLAN, _WHY, _RETRY = "plan", "why", "retry_of"


def check_study(spec: SweepSpec, name: str) -> None:
    """Tries the study before a sweep starts; makes it if there is none.

    Raises:
        StudyError: If the storage cannot be opened, another driver tunes the study, or it
            measured another job.
    """
    url = storage_url(spec, name)
    with storage_errors(url), brief_storage(url) as storage:
        refuse_second_driver(spec, name)
        study_in(storage, spec, name)


def study_in(storage: RDBStorage, spec: SweepSpec, name: str) -> optuna.Study:
    """The study, made if there is none.

    Raises:
        StudyError: If it measured another job.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        direction="maximize",
        sampler=RandomSampler(),  # never asked: proposers are
        load_if_exists=True,
    )
    measured = any(RECORD in trial.user_attrs for trial in study.get_trials(deepcopy=False))
    check_subject(study, spec, name, measured=measured)
    _name_values(study, spec.objective.metric)
    return study


def _name_values(study: optuna.Study, metric: Metric) -> None:
    """Names the study's values, as the axes of Optuna's plots and of optuna-dashboard show them."""
    names = [VALUE_NAMES[metric]]
    if study.metric_names != names:
        with warnings.catch_warnings():  # Optuna's that it may still change this, in each sweep
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTrial:
    """A trial that the study opened."""

    number: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedTrial:
    """A trial that was under way when its driver died."""

    number: int
    plan: Plan
    retry_of: int | None  # the trial of which it was the second try


class StudyLost(StudyError):
    """The storage went away in mid-sweep, for longer than the sweep waits."""


class Study:
    """The trials of one sweep. One driver writes it at a time: see `sole_driver`.

    Raises:
        StudyLost: From any method that writes, if the storage is away for too long.
    """

    def __init__(
        self,
        spec: SweepSpec,
        name: str,
        space: Space,
        earlier: Sequence[EarlierStudy] = (),
        lock: AbstractLock | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Opens the study, or makes it.

        Args:
            spec: What is measured.
            name: The study's.
            space: What may be tried.
            earlier: Other studies of the same job, which may be evidence.
            lock: What says that no other driver writes it; None if there can be no other.
            clock: By which waiting for a storage ends.

        Raises:
            StudyError: If the storage cannot be opened, or the study measured another job.
        """
        self._space = space
        self._goal = Objective.of(spec)
        self._kept = storable(distributions(space))
        self._name, self._url = name, storage_url(spec, name)
        self._minutes = spec.study.wait_minutes
        self._untold = spool_file(spec, name)
        self._patience = RetryPolicy("the study's storage", 60 * self._minutes, clock)
        with storage_errors(self._url), self._losses():
            storage = open_storage(self._url)
            self._study = study_in(storage, spec, name)
            self._ledger = StudyWriter(storage, self._study, self._patience, lock)
            self._finish_half_told()
            self._tell_untold()
            self._records = list(records_of(self._study))
        self._free = np.ones(len(space.table), dtype=bool)  # the candidates that nobody took
        for record in self._records:
            self._take(record.plan)
        self._open: dict[int, tuple[Trial, Plan]] = {}
        # drivers one after the other draw different numbers, and the same ones when run again
        seed = (spec.study.seed + len(self._records)) % 2**32
        self._proposer = _proposer(space, spec, seed, earlier)
        self._earlier = earlier

    def say_through(self, say: Callable[[str], None]) -> None:
        """Lets it be known when the storage goes away, and when it is back."""
        self._patience.say = say

    def give_up_waiting(self) -> None:
        """Waits no longer for a storage that is away: somebody waits for the end."""
        self._patience.give_up_waiting()

    def records(self) -> tuple[Record, ...]:
        """Every trial that ended with a record, by number."""
        return tuple(sorted(self._records, key=lambda record: record.number))

    def validations(self) -> tuple[Record, ...]:
        """Every validation that came to an end, in their order."""
        with self._losses():
            return self._ledger.call(kept_validations)

    def keep_validation(self, validation: Record) -> None:
        """Writes a validation down; its trial has ended and stays as it is."""
        with self._losses(validation):
            self._ledger.call(lambda study: keep_validation(study, validation))

    def keep_provenance(self, provenance: Provenance) -> tuple[Provenance, ...]:
        """Writes down user, code and data of a driver that begins.

        Returns:
            The provenances of all drivers of the study, this one's among them.
        """
        with self._losses():
            self._ledger.call(lambda study: keep_provenance(study, provenance))
            return self._ledger.call(kept_provenances)

    def keep_end(self, ended: SweepEnded) -> None:
        """Writes down how the sweep ended."""
        with self._losses():
            self._ledger.call(lambda study: keep_end(study, ended))

    def untried(self, kinds: Collection[str] | None = None) -> Candidates:
        """Candidates of which no trial has ended or is under way, in the space's order.

        Args:
            kinds: The accelerators of those; None: any.
        """
        return Candidates(self._space.table.take(self._free & self._on(kinds)))

    def propose(
        self, prospects: SearchPrior | None = None, kinds: Collection[str] | None = None
    ) -> Proposal:
        """What the sampler would try next, of the untried candidates; there is at least one.

        Args:
            prospects: Forecasts of the space's candidates, None while there are none.
            kinds: The accelerators of which it may be; None: any.
        """
        known = self._known(prospects)
        return self._proposer.propose(replace(known, free=known.free & self._on(kinds)))

    def _on(self, kinds: Collection[str] | None) -> NDArray[np.bool_]:
        table = self._space.table
        return table.is_one_of(
            "accelerator", table.values["accelerator"] if kinds is None else kinds
        )

    def sources(self, ours: Fingerprint) -> tuple[str, ...]:
        """Which other studies are evidence on this hardware and software, a sentence each."""
        return sources(self._earlier, ours)

    def regret_bound(self, prospects: SearchPrior | None = None) -> float | None:
        """How much faster than the best an untried candidate is at most, with 95 %.

        None where nobody can say: nothing was measured, or the sampler has no notion of it.
        """
        return self._proposer.regret_bound(self._known(prospects)) if self._free.any() else 1.0

    def ask(self, plan: Plan, why: str, retry_of: int | None = None) -> OpenedTrial:
        """Opens a trial of a plan."""
        attributes: dict[str, Any] = {_PLAN: plan.as_dict(), _WHY: why}
        if retry_of is not None:
            attributes[_RETRY] = retry_of
        known = parameters(plan, self._kept)
        template = {"params": known, "distributions": None if known is None else self._kept}
        with self._losses():
            trial = self._ledger.open(attributes, template)
        self._take(plan)
        self._open[trial.number] = trial, plan
        return OpenedTrial(number=trial.number, plan=plan)

    def tell(self, record: Record) -> None:
        """Closes a trial with its record.

        Out of memory is a broken constraint of a trial without a value (samplers skip failed
        trials, and would forget it); what says nothing of the space is a failure.
        """
        trial, _ = self._open[record.number]
        with self._losses(record):
            self._ledger.close(trial._trial_id, self._entry(record))
        del self._open[record.number]
        self._records.append(record)

    def interrupted(self) -> tuple[InterruptedTrial, ...]:
        """Trials that an earlier driver left open."""
        with self._losses():
            left = self._ledger.running()
        return tuple(
            InterruptedTrial(
                number=trial.number,
                plan=Plan.from_dict(trial.user_attrs[_PLAN]),
                retry_of=trial.user_attrs.get(_RETRY),
            )
            for trial in left
            if trial.number not in self._open and _PLAN in trial.user_attrs
        )

    def abandon(self, number: int, record: Record | None = None) -> None:
        """Fails a trial that never ended; with a record it counts, without it can run again.

        Does nothing to a trial that has ended: who stops a sweep may come just too late.
        """
        opened = self._open.pop(number, None)
        if record is None and opened:
            self._free[self._space.table.rows_of(opened[1])] = True
        with self._losses(record):
            self._ledger.fail(number, None if record is None else record_to_json(record))
        if record is not None:
            self._records.append(record)
            self._take(record.plan)

    def _known(self, prospects: SearchPrior | None) -> SearchState:
        return SearchState(
            records=self._records,
            free=self._free,
            running=tuple(plan for _, plan in self._open.values()),
            prospects=prospects,
        )

    def _take(self, plan: Plan) -> None:
        self._free[self._space.table.rows_of(plan)] = False

    def _entry(self, record: Record) -> Entry:
        states = {Measured: TrialState.COMPLETE, OutOfMemory: TrialState.PRUNED}
        measured = isinstance(record.outcome, Measured)
        return Entry(
            record=record_to_json(record),
            constraints=constraints_of(record, self._goal),
            state=states.get(type(record.outcome), TrialState.FAIL),
            value=score(record, self._goal) if measured else None,
        )

    def _finish_half_told(self) -> None:
        """Closes trials whose driver died when their record was written, but they still open."""
        for left in self._ledger.running():
            if RECORD in left.user_attrs:
                self._ledger.close(left._trial_id, self._entry(record_of(left)))

    def _tell_untold(self) -> None:
        """Tells what an earlier driver could not, of trials that nobody has ended since."""
        running = {trial.number: trial for trial in self._ledger.running()}
        for record in read_spool(self._untold):
            if record.validation:
                self._ledger.call(partial(keep_validation, validation=record))
                continue
            left = running.pop(record.number, None)
            if left is not None and left.user_attrs.get(_PLAN) == record.plan.as_dict():
                self._ledger.close(left._trial_id, self._entry(record))
        with contextlib.suppress(OSError):
            self._untold.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _losses(self, record: Record | None = None) -> Iterator[None]:
        """Turns a storage that stays away into an error, with what is done about a result."""
        try:
            yield
        except Unavailable as away:
            kept = ""
            if record is not None:
                noted = spool(self._untold, record)
                kept = f" and the result of trial {record.number} in {self._untold}" * noted
            raise StudyLost(
                f"study.storage {shown_url(self._url)} is away ({away}), for longer than"
                f" study.wait_minutes ({self._minutes:g}): all that was told is kept there{kept};"
                " the same command goes on where the sweep stopped"
            ) from away


def _proposer(
    space: Space, spec: SweepSpec, seed: int, earlier: Sequence[EarlierStudy]
) -> AbstractProposer:
    sampler = spec.study.sampler
    if sampler == "plimsoll":
        return PlimsollProposer(space, spec, seed, earlier)
    return OptunaProposer(space, sampler, Objective.of(spec), seed)
