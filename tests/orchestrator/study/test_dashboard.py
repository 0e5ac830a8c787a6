"""optuna-dashboard on a study: requests of its pages, answered by the real server."""

import io
import json
from typing import Any

import pytest
from optuna_dashboard import wsgi

from orchestrator.study.storage import storage_url
from search_spaces.trial import Measured, Outcome, OutOfMemory
from tests.orchestrator.study.values import NAME, open_study, outcome_of, run, study_spec

TRIALS = 12
HEADROOM = 0.3  # of the limit, which plans may not use


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Outcome]]:
    """URL and outcomes of a study in which one was out of memory and another left no headroom."""
    train = {"global_batch": 64, "sequence_length": 128, "precision": "fp32"}
    folder = tmp_path_factory.mktemp("dashboard")
    objective = {"headroom": HEADROOM}
    spec = study_spec(folder, sampler="random", train=train, objective=objective)
    plans = run(open_study(spec), TRIALS)
    outcomes = [outcome_of(plan) for plan in plans]
    assert any(isinstance(outcome, OutOfMemory) for outcome in outcomes)
    assert any(isinstance(one, Measured) and one.memory.share > 1 - HEADROOM for one in outcomes)
    return storage_url(spec, NAME), outcomes


@pytest.fixture
def url(swept: tuple[str, list[Outcome]]) -> str:
    return swept[0]


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


def test_trials_have_knobs_and_values(url: str) -> None:
    told = ask(url, "/api/studies/1")

    assert len(told["trials"]) == TRIALS
    states = {trial["state"] for trial in told["trials"]}
    assert states == {"Complete", "Pruned"}  # none failed: out of memory is an answer
    for trial in told["trials"]:
        assert {"micro_batch", "zero_stage"} <= {param["name"] for param in trial["params"]}
        assert trial["state"] == "Pruned" or trial["values"][0] > 0


def test_infeasible_trials_are_shown_as_such(swept: tuple[str, list[Outcome]]) -> None:
    """The page takes a trial as feasible if `every(constraint <= 0)` of these."""
    url, outcomes = swept
    trials = ask(url, "/api/studies/1")["trials"]

    for trial in trials:
        outcome = outcomes[trial["number"]]
        feasible = isinstance(outcome, Measured) and outcome.memory.share <= 1 - HEADROOM
        assert len(trial["constraints"]) == 1
        assert all(constraint <= 0 for constraint in trial["constraints"]) == feasible
    infeasible = [trial for trial in trials if trial["constraints"][0] > 0]
    assert {trial["state"] for trial in infeasible} == {"Complete", "Pruned"}


def test_knobs_are_ranked_by_importance(url: str) -> None:
    (ranked,) = ask(url, "/api/studies/1/param_importances")["param_importances"]

    assert "micro_batch" in {each["name"] for each in ranked}
    assert sum(each["importance"] for each in ranked) == pytest.approx(1)
