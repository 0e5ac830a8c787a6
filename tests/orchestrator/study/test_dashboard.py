"""optuna-dashboard on a study: what its pages ask of its server, answered by the real one."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from optuna_dashboard import wsgi

from orchestrator.study import storage_url
from tests.orchestrator.study.values import NAME, open_study, outcome_of, run, study_spec

TRIALS = 12


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A study of some trials, of which at least one ran out of memory."""
    train = {"global_batch": 64, "sequence_length": 128, "precision": "fp32"}
    spec = study_spec(tmp_path_factory.mktemp("dashboard"), sampler="random", train=train)
    plans = run(open_study(spec), TRIALS)
    assert any(outcome_of(plan).kind == "out_of_memory" for plan in plans)
    return storage_url(spec, NAME)


def ask(url: str, path: str) -> Any:
    """What the dashboard's server answers, without a socket."""
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
    # the dashboard knows constraints as Optuna 4 kept them, and shows none of Optuna 5
    ran_out = [trial for trial in study.trials if trial.state == TrialState.PRUNED]
    assert all(trial.constraints["memory"] > 0 for trial in ran_out)
    assert study.best_trial.state == TrialState.COMPLETE
