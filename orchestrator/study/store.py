"""One Optuna study as the truth of a sweep: asked for plans, told how they ended."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState, create_trial

from orchestrator.core.events import SweepEnded
from orchestrator.core.goal import Goal
from orchestrator.core.ranking import score
from orchestrator.study.constraint import constraints_of
from orchestrator.study.earlier import EarlierStudy, sources
from orchestrator.study.ends import keep_end
from orchestrator.study.parameters import distributions, for_keeping, parameters
from orchestrator.study.plimsoll_proposer import PlimsollProposer
from orchestrator.study.proofs import keep_proof, kept_proofs
from orchestrator.study.proposals import AbstractProposer, Known, Proposal
from orchestrator.study.records import RECORD, record_of, record_to_json, records_of
from orchestrator.study.sampler import OptunaProposer
from orchestrator.study.storage import open_storage, storage_errors, storage_url
from orchestrator.study.subject import check_subject
from search_spaces.forecast.prospects import Prospects
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.plan import Plan
from search_spaces.plan_table import Candidates
from search_spaces.record import Fingerprint, Record
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec

_PLAN, _WHY, _RETRY = "plan", "why", "retry_of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial that the study opened."""

    number: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A trial that was under way when its driver died."""

    number: int
    plan: Plan
    retry_of: int | None  # the trial of which it was the second try


class Study:
    """The trials of one sweep. Not safe for two drivers at once."""

    def __init__(
        self, spec: SweepSpec, name: str, space: Space, earlier: Sequence[EarlierStudy] = ()
    ) -> None:
        """Opens the study, or makes it.

        Args:
            spec: What is measured.
            name: The study's.
            space: What may be tried.
            earlier: Other studies of the same job, which may be evidence.

        Raises:
            StudyError: If the storage cannot be opened, or the study measured another job.
        """
        self._space = space
        self._goal = Goal.of(spec)
        self._kept = for_keeping(distributions(space))
        with storage_errors(storage_url(spec, name)):
            self._storage, self._study = _open_study(spec, name)
            self._id = self._storage.get_study_id_from_name(name)
            self._finish_half_told()
            self._records = list(records_of(self._study))
        self._free = np.ones(len(space.table), dtype=bool)  # the candidates that nobody took
        for record in self._records:
            self._take(record.plan)
        self._open: dict[int, tuple[Trial, Plan]] = {}
        # drivers one after the other draw different numbers, and the same ones when run again
        seed = (spec.study.seed + len(self._records)) % 2**32
        self._proposer = _proposer(space, spec, seed, earlier)
        self._earlier = earlier

    def records(self) -> tuple[Record, ...]:
        """Every trial that ended with a record, by number."""
        return tuple(sorted(self._records, key=lambda record: record.number))

    def proofs(self) -> tuple[Record, ...]:
        """Every proof that came to an end, in their order."""
        return kept_proofs(self._study)

    def keep_proof(self, proof: Record) -> None:
        """Writes a proof down; its trial has ended and stays as it is."""
        keep_proof(self._study, proof)

    def keep_end(self, ended: SweepEnded) -> None:
        """Writes down how the sweep ended."""
        keep_end(self._study, ended)

    def untried(self) -> Candidates:
        """Candidates of which no trial has ended or is under way, in the space's order."""
        return Candidates(self._space.table.take(self._free))

    def propose(self, prospects: Prospects | None = None) -> Proposal:
        """What the sampler would try next, of the untried candidates; there is at least one.

        Args:
            prospects: Forecasts of the space's candidates, None while there are none.
        """
        return self._proposer.propose(self._known(prospects))

    def sources(self, ours: Fingerprint) -> tuple[str, ...]:
        """Which other studies are evidence on this hardware and software, a sentence each."""
        return sources(self._earlier, ours)

    def left(self, prospects: Prospects | None = None) -> float | None:
        """How much faster than the best an untried candidate is at most, with 95 %.

        None where nobody can say: nothing was measured, or the sampler has no notion of it.
        """
        return self._proposer.left(self._known(prospects)) if self._free.any() else 1.0

    def ask(self, plan: Plan, why: str, retry_of: int | None = None) -> Asked:
        """Opens a trial of a plan.

        One commit: a driver that dies in it leaves either no trial or one that says what it is.
        """
        attributes: dict[str, Any] = {_PLAN: plan.as_dict(), _WHY: why}
        if retry_of is not None:
            attributes[_RETRY] = retry_of
        known = parameters(plan, self._kept)
        template = create_trial(
            state=TrialState.RUNNING,
            params=known,
            distributions=None if known is None else self._kept,
            user_attrs=attributes,
        )
        trial = Trial(self._study, self._storage.create_new_trial(self._id, template))
        self._take(plan)
        self._open[trial.number] = trial, plan
        return Asked(number=trial.number, plan=plan)

    def tell(self, record: Record) -> None:
        """Closes a trial with its record.

        Out of memory is a broken constraint of a trial without a value (samplers skip failed
        trials, and would forget it); what says nothing of the space is a failure.
        """
        trial, _ = self._open.pop(record.number)
        trial.set_user_attr(RECORD, record_to_json(record))
        self._records.append(record)
        self._close(trial, record)

    def interrupted(self) -> tuple[Interrupted, ...]:
        """Trials that an earlier driver left open."""
        left = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return tuple(
            Interrupted(
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
        trial = opened[0] if opened else Trial(self._study, self._trial_id(number))
        if record is not None:
            trial.set_user_attr(RECORD, record_to_json(record))
            self._records.append(record)
            self._take(record.plan)
        self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def _known(self, prospects: Prospects | None) -> Known:
        return Known(
            records=self._records,
            free=self._free,
            running=tuple(plan for _, plan in self._open.values()),
            prospects=prospects,
        )

    def _take(self, plan: Plan) -> None:
        self._free[self._space.table.rows_of(plan)] = False

    def _close(self, trial: Trial, record: Record) -> None:
        for name, missed in constraints_of(record, self._goal).items():
            trial.set_constraint(name, missed)
        match record.outcome:
            case Measured():
                self._end(trial, TrialState.COMPLETE, (score(record, self._goal),))
            case OutOfMemory():
                self._end(trial, TrialState.PRUNED)
            case _:
                self._end(trial, TrialState.FAIL)

    def _end(self, trial: Trial, state: TrialState, values: tuple[float] | None = None) -> None:
        # `Study.tell` would read the whole trial twice more, a third of what telling takes
        self._storage.set_trial_state_values(trial._trial_id, state, values)

    def _finish_half_told(self) -> None:
        """Closes trials whose driver died when their record was written, but they still open."""
        for left in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if RECORD not in left.user_attrs:
                continue
            record = record_of(left)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna's, if the constraint was told as well
                self._close(Trial(self._study, left._trial_id), record)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)


def _proposer(
    space: Space, spec: SweepSpec, seed: int, earlier: Sequence[EarlierStudy]
) -> AbstractProposer:
    sampler = spec.study.sampler
    if sampler == "plimsoll":
        return PlimsollProposer(space, spec, seed, earlier)
    return OptunaProposer(space, sampler, Goal.of(spec), seed)


def check_study(spec: SweepSpec, name: str) -> None:
    """Tries the study before a sweep starts; makes it if there is none.

    Raises:
        StudyError: If the storage cannot be opened, or the study measured another job.
    """
    with storage_errors(storage_url(spec, name)):
        _open_study(spec, name)


def _open_study(spec: SweepSpec, name: str) -> tuple[RDBStorage, optuna.Study]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(storage_url(spec, name))
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        direction="maximize",
        sampler=RandomSampler(),  # never asked: proposers are
        load_if_exists=True,
    )
    measured = any(RECORD in trial.user_attrs for trial in study.get_trials(deepcopy=False))
    check_subject(study, spec, name, measured=measured)
    return storage, study
