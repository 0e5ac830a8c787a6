"""The study on a real SQLite file: proposals, results, and what survives a crash."""

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import text

from orchestrator.core.objective import Objective, best
from orchestrator.study.reader import earlier_studies, load_records
from orchestrator.study.storage import storage_url
from orchestrator.study.study import Study
from search_spaces.errors import StudyError
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Outcome
from tests.orchestrator.records import PROPOSED, make_record, make_space
from tests.orchestrator.study.values import NAME, next_plan, open_study, run, stored_end, study_spec
from tests.outcomes import make_measured, make_oom

SAMPLERS = ("tpe", "gp", "random")
GP_THOROUGH = pytest.param("gp", marks=pytest.mark.thorough)  # each of its asks takes long
SLOW_LAST = ("tpe", "random", GP_THOROUGH)
SMALL = {"micro_batch": [1, 2, 4], "zero_stage": [0], "attention": ["sdpa"], "batching": ["padded"]}


def stored(spec: SweepSpec) -> list[FrozenTrial]:
    """Returns the trials as Optuna alone sees them."""
    study = optuna.load_study(study_name=NAME, storage=storage_url(spec, NAME))
    return study.get_trials()


def told(spec: SweepSpec, outcome: Outcome) -> FrozenTrial:
    study = open_study(spec)
    plan = next_plan(study)
    number = study.ask(plan, PROPOSED)
    study.tell(make_record(number, plan, outcome))
    return stored(spec)[-1]


@pytest.mark.parametrize(
    ("wanted", "constraint"),
    [
        (1.3, 1.3 / 0.95 - 1),  # graded: bytes wanted over what the headroom leaves
        (None, 1 / 0.95 - 1),  # nobody knows how much: just over
        (0.9, 1 / 0.95 - 1),  # it ran out below the limit: over all the same
    ],
)
def test_out_of_memory_is_a_graded_constraint_and_no_value(
    wanted: float | None, constraint: float, tmp_path: Path
) -> None:
    trial = told(study_spec(tmp_path), make_oom(wanted))

    assert trial.state == TrialState.PRUNED
    assert trial.value is None
    # by name as Optuna 5 keeps it, and in the list that optuna-dashboard reads
    (listed,) = trial.system_attrs["constraints"]
    assert trial.constraints == {"memory": pytest.approx(constraint, abs=2e-6), "0": listed}
    assert listed == trial.constraints["memory"]
    assert trial.constraints["memory"] > 0


def test_a_plan_above_the_line_is_infeasible_and_never_best(tmp_path: Path) -> None:
    spec = study_spec(tmp_path)
    study = open_study(spec)
    for speed, share in ((20.0, 0.94), (44.0, 0.96)):
        plan = next_plan(study)
        number = study.ask(plan, PROPOSED)
        study.tell(make_record(number, plan, make_measured(speed, share)))

    below, above = stored(spec)
    assert below.constraints["memory"] < 0 < above.constraints["memory"]
    assert above.value == 44.0  # it was measured, and is kept as such
    top = best(study.records(), Objective.of(spec))
    assert top is not None
    assert top.number == below.number
    optunas_own = optuna.load_study(study_name=NAME, storage=storage_url(spec, NAME))
    assert optunas_own.best_trial.number == below.number


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_all_of_a_small_space_is_asked_once(sampler: str, tmp_path: Path) -> None:
    spec = study_spec(tmp_path, sampler, space=SMALL)
    space = make_space(spec)
    study = Study(spec, NAME, space)

    plans = run(study, len(space.candidates))

    assert len(plans) == 15
    assert set(plans) == set(space.candidates)


@pytest.mark.parametrize("sampler", SLOW_LAST)
def test_one_seed_gives_one_order(sampler: str, tmp_path: Path) -> None:
    runs = [
        run(open_study(study_spec(tmp_path / folder, sampler, study={"seed": seed})), 12)
        for folder, seed in (("first", 7), ("again", 7), ("other", 8))
    ]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("sampler", ["tpe", GP_THOROUGH])
def test_a_space_that_changes_on_resume(sampler: str, tmp_path: Path) -> None:
    small = study_spec(tmp_path, sampler, space=SMALL)
    run(open_study(small), 10)
    grown = study_spec(tmp_path, sampler, space={"micro_batch": [1, 2, 4, 8]})  # all else searched

    plans = run(open_study(grown), 5)
    assert set(plans) <= set(make_space(grown).candidates)
    assert not set(plans) & {record.plan for record in load_records(small, NAME)[:10]}

    shrunk = study_spec(tmp_path, sampler, space={"micro_batch": [1, 2], "batching": ["padded"]})
    assert {plan.micro_batch for plan in run(open_study(shrunk), 5)} <= {1, 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"space": {"micro_batch": [1, 2]}},
        {"budget": {"trials": 99}},
        {"cluster": {"workers": 2, "memory_gib": 0.5, "address": "auto"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_may_change_between_two_runs(changes: dict[str, object], tmp_path: Path) -> None:
    run(open_study(study_spec(tmp_path)), 2)

    assert len(open_study(study_spec(tmp_path, **changes)).records()) == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "gpt2"}, "model.name"),
        ({"train": {"global_batch": 32, "sequence_length": 128}}, "train.global_batch"),
        ({"cluster": {"workers": 2, "memory_gib": 1.0}}, "cluster.memory_gib"),
    ],
)
def test_another_job_is_refused_by_what_changed(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    run(open_study(study_spec(tmp_path)), 1)

    with pytest.raises(StudyError, match="holds measurements of another job") as caught:
        open_study(study_spec(tmp_path, **changes))
    assert named in str(caught.value)
    assert "choose another study.name" in str(caught.value)


def test_the_kind_of_nodes_is_part_of_the_job_and_its_price_is_not(tmp_path: Path) -> None:
    def on(**keys: Any) -> SweepSpec:
        return study_spec(tmp_path, cluster={"workers": 2, "memory_gib": 0.5, **keys})

    run(open_study(on(accelerator="A100", price_per_gpu_hour=2.0)), 2)

    assert len(open_study(on(accelerator="A100", price_per_gpu_hour=3.0)).records()) == 2
    with pytest.raises(StudyError, match=r"cluster\.accelerator changed"):
        open_study(on(accelerator="H100"))


def test_what_is_asked_at_least_is_a_graded_constraint_too(tmp_path: Path) -> None:
    """A plan that ran out of memory reached no speed."""
    asked = {"metric": "headroom", "at_least": {"samples_per_second": 50.0}}
    study = open_study(study_spec(tmp_path, objective=asked))
    outcomes = [make_measured(40.0, 0.6), make_oom(1.5)]
    for outcome in outcomes:
        plan = next_plan(study)
        number = study.ask(plan, PROPOSED)
        study.tell(make_record(number, plan, outcome))

    measured, ran_out = optuna.load_study(
        study_name=NAME, storage=storage_url(study_spec(tmp_path), NAME)
    ).trials

    assert measured.values == [pytest.approx(0.4, abs=1e-6)]
    assert measured.constraints["samples_per_second"] == pytest.approx(0.2)
    assert ran_out.constraints["samples_per_second"] == 1.0


def written_by_another_version(spec: SweepSpec) -> None:
    """Gives the records of a study, and its end, the form that they had before."""
    storage = optuna.storages.RDBStorage(storage_url(spec, NAME))
    study = optuna.load_study(study_name=NAME, storage=storage)
    for trial in study.trials:
        kept = dict(trial.user_attrs["record"])
        kept["why"] = kept.pop("reason")["kind"]
        with storage.engine.begin() as connection:
            connection.execute(
                text("UPDATE trial_user_attributes SET value_json = :kept WHERE key = 'record'"),
                {"kept": json.dumps(kept)},
            )
    study.set_user_attr("ended", {"reason": "enough", "at": 1.0, "left": 1.0, "trials": 1})
    storage.engine.dispose()


def test_a_study_of_another_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    spec = study_spec(tmp_path)
    run(open_study(spec), 1)
    written_by_another_version(spec)

    for read in (lambda: load_records(spec, NAME), lambda: open_study(spec)):
        with pytest.raises(StudyError, match=r"another version .* cannot read reason; choose"):
            read()
    assert stored_end(spec) is None
    assert earlier_studies(spec, "another") == ()  # a search can do without it
