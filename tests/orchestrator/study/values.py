"""A small sweep on a synthetic machine: plain arithmetic, no Ray and no clock."""

from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import create_engine, text

from orchestrator.core.events import SweepEnded
from orchestrator.core.inputs import DriverStarted
from orchestrator.core.placement import CapacityRequest
from orchestrator.search.optuna_samplers import proposer_of
from orchestrator.study.serialization import kept_end
from orchestrator.study.storage import storage_url
from orchestrator.study.study import Study
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Outcome
from tests.orchestrator.records import PROPOSED, make_record, make_space, make_spec, searching
from tests.outcomes import LIMIT_BYTES, make_measured, make_oom

NAME = "small"


def study_spec(folder: Path, sampler: str = "tpe", **sections: Any) -> SweepSpec:
    """Returns a sweep of the test space with its study in `folder`."""
    study = {"folder": str(folder), "sampler": sampler, **sections.pop("study", {})}
    return make_spec(study=study, **sections)


def open_study(spec: SweepSpec) -> Study:
    return Study(spec, NAME, make_space(spec))


def stored_end(spec: SweepSpec, name: str = NAME) -> SweepEnded | None:
    """Returns the end that a study keeps, with or without a trial."""
    study = optuna.load_study(study_name=name, storage=storage_url(spec, name))
    return kept_end(study)


def execute(url: str, *statements: str) -> None:
    """Runs SQL statements in a database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def share_of_limit(plan: Plan) -> float:
    """Returns peak memory over the limit: model state, and activations that are kept."""
    state = {0: 0.35, 1: 0.3, 2: 0.28, 3: 0.22}[plan.zero_stage]
    wide = 1.3 if plan.attention == "eager" else 1.0
    padding = {"padded": 1.0, "grouped": 0.9, "packed": 0.8}[plan.batching]
    activations = plan.micro_batch * (1 - 0.75 * plan.checkpoint_ratio) * wide * padding
    return state + 0.06 * activations


def rate(plan: Plan) -> float:
    """Returns samples per second, which grow with the micro-batch until memory runs out."""
    grown = 100 * plan.micro_batch / (plan.micro_batch + 3.0)
    sharded = {0: 1.0, 1: 0.99, 2: 0.97, 3: 0.9}[plan.zero_stage]
    attention = 0.8 if plan.attention == "eager" else 1.0
    batching = {"padded": 0.6, "grouped": 0.8, "packed": 1.0}[plan.batching]
    return grown / (1 + 0.33 * plan.checkpoint_ratio) * sharded * attention * batching


def outcome_of(plan: Plan) -> Outcome:
    share = share_of_limit(plan)
    return make_oom(share) if share > 1 else make_measured(rate(plan), share)


def started(study: Study) -> DriverStarted:
    cluster = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=LIMIT_BYTES)
    return study.driver_started(cluster, CapacityRequest(groups=1, ranks=2), 1, 0.0)


def next_plan(study: Study) -> Plan:
    """Returns a plan without a trial."""
    begun = started(study)
    tried = {trial.plan for trial in (*begun.sweep.records, *begun.interrupted)}
    return next(plan for plan in begun.sweep.space.candidates if plan not in tried)


def run(study: Study, trials: int) -> list[Plan]:
    """Runs that number of trials; returns their plans."""
    begun = started(study).sweep
    spec, space, records = begun.spec, begun.space, list(begun.records)
    proposer = proposer_of(space, spec, len(records))
    for _ in range(trials):
        plan = proposer.propose(searching(spec, space, records), None).plan
        number = study.ask(plan, PROPOSED)
        records.append(make_record(number, plan, outcome_of(plan)))
        study.tell(records[-1])
    return [record.plan for record in records[len(begun.records) :]]
