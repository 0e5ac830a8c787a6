"""optuna-dashboard on a study: requests of its pages, answered by the real server."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.trial import TrialState
from optuna_dashboard import wsgi

from orchestrator.search.observations import CONSTRAINTS_LIST
from orchestrator.study.storage import storage_url
from orchestrator.study.study import VALUE_NAMES
from search_spaces.plan import Plan
from search_spaces.trial import Measured, OutOfMemory
from tests.orchestrator.study.values import NAME, open_study, outcome_of, run, study_spec

TRIALS = 12
HEADROOM = 0.3  # of the limit, which plans may not use


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a study in which a trial ran out of memory and another left no headroom."""
    train = {"global_batch": 64, "sequence_length": 128, "precision": "fp32"}
    folder = tmp_path_factory.mktemp("dashboard")
    objective = {"headroom": HEADROOM}
    spec = study_spec(folder, sampler="random", train=train, objective=objective)
    plans = run(open_study(spec), TRIALS)
    outcomes = [outcome_of(plan) for plan in plans]
    assert any(isinstance(outcome, OutOfMemory) for outcome in outcomes)
    assert any(isinstance(one, Measured) and one.memory.share > 1 - HEADROOM for one in outcomes)
    return storage_url(spec, NAME)


def ask(url: str, path: str) -> Any:
    """Returns the answer of the dashboard's server, without a socket."""
    answered: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
    }
    told = wsgi(url)(environ, lambda status, *_: answered.append(status))
    body = b"".join(told)
    assert answered == ["200 OK"], body
    return json.loads(body)


def test_the_study_is_listed(url: str) -> None:
    (study,) = ask(url, "/api/studies")["study_summaries"]

    assert (study["study_name"], study["directions"]) == (NAME, ["maximize"])


def test_trials_have_knobs_and_values(url: str) -> None:
    told = ask(url, "/api/studies/1")

    assert len(told["trials"]) == TRIALS
    states = {trial["state"] for trial in told["trials"]}
    assert states == {"Complete", "Pruned"}  # none failed: out of memory is an answer
    for trial in told["trials"]:
        assert {"micro_batch", "zero_stage"} <= {param["name"] for param in trial["params"]}
        assert trial["state"] == "Pruned" or trial["values"][0] > 0


def test_infeasible_trials_are_shown_as_such(url: str) -> None:
    """The page takes a trial as feasible if `every(constraint <= 0)` of these."""
    trials = ask(url, "/api/studies/1")["trials"]

    for trial in trials:
        outcome = outcome_of(Plan.from_dict(json.loads(attribute(trial, "plan"))))
        feasible = isinstance(outcome, Measured) and outcome.memory.share <= 1 - HEADROOM
        assert len(trial["constraints"]) == 1
        assert all(constraint <= 0 for constraint in trial["constraints"]) == feasible
    infeasible = [trial for trial in trials if trial["constraints"][0] > 0]
    assert {trial["state"] for trial in infeasible} == {"Complete", "Pruned"}


def test_axes_have_the_name_of_the_objective(url: str) -> None:
    assert ask(url, "/api/studies/1")["objective_names"] == ["samples per second"]


@pytest.mark.parametrize("metric", ["samples_per_price", "headroom"])
def test_each_objective_has_a_name(metric: str, tmp_path: Path) -> None:
    spec = study_spec(tmp_path, objective={"metric": metric}, cluster={"price_per_gpu_hour": 2.0})
    open_study(spec)

    (name,) = ask(storage_url(spec, NAME), "/api/studies/1")["objective_names"]

    assert name == VALUE_NAMES[metric]


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: optuna.samplers.TPESampler(n_startup_trials=4, seed=0),
        lambda: optuna.samplers.NSGAIISampler(population_size=4, seed=0),
    ],
    ids=["tpe", "nsga2"],
)
def test_samplers_of_optuna_propose_the_same_with_the_dashboards_list(
    url: str, sampler: Callable[[], BaseSampler]
) -> None:
    """They add up violations, so counting each constraint twice changes no order."""
    proposed = []
    for listed in (True, False):
        study = continued(url, sampler(), listed=listed)
        proposed.append([study.ask(study.trials[0].distributions).params for _ in range(6)])

    assert proposed[0] == proposed[1]


def test_the_gaussian_process_of_optuna_goes_on_with_the_study(url: str) -> None:
    """It models each constraint, and rejects trials with different numbers of them."""
    study = continued(url, optuna.samplers.GPSampler(n_startup_trials=4, seed=0))

    trial = study.ask(study.trials[0].distributions)

    assert trial.relative_params == trial.params


def continued(url: str, sampler: BaseSampler, *, listed: bool = True) -> optuna.Study:
    """Copies the study to memory, with or without the list that optuna-dashboard reads."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in optuna.load_study(study_name=NAME, storage=url).trials:
        if not listed:
            del trial.system_attrs[CONSTRAINTS_LIST]
        study.add_trial(trial)
    return study


def attribute(trial: dict[str, Any], key: str) -> str:
    (value,) = (each["value"] for each in trial["user_attrs"] if each["key"] == key)
    return str(value)


def test_knobs_are_ranked_by_importance(url: str) -> None:
    (ranked,) = ask(url, "/api/studies/1/param_importances")["param_importances"]

    assert "micro_batch" in {each["name"] for each in ranked}
    assert sum(each["importance"] for each in ranked) == pytest.approx(1)


def test_looking_changes_nothing(url: str) -> None:
    def dumped() -> list[str]:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return list(connection.iterdump())

    before = dumped()
    for path in ("/api/studies", "/api/studies/1", "/api/studies/1/param_importances"):
        ask(url, path)

    assert dumped() == before


def test_plain_optuna_makes_its_plots(url: str) -> None:
    study = optuna.load_study(study_name=NAME, storage=url)
    drawn = optuna.visualization
    figures = [
        drawn.plot_optimization_history(study),
        drawn.plot_parallel_coordinate(study),
        drawn.plot_slice(study),
        drawn.plot_param_importances(study),
    ]

    assert all(figure.data for figure in figures)
    frame = study.trials_dataframe()
    assert len(frame) == TRIALS
    ran_out = [trial for trial in study.trials if trial.state == TrialState.PRUNED]
    assert all(trial.constraints["memory"] > 0 for trial in ran_out)
    assert study.best_trial.state == TrialState.COMPLETE
