"""Layers 6 and 7: the overlay `local` run by what its rendered manifests say.

Ray, PostgreSQL and MLflow are real; only addresses and folders are this machine's. What is
submitted are the rendered entry point, metadata and runtime environment, by the operator's own
commands.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlflow
import psycopg
import pytest
import yaml

from tests.k8s.containers import environment, submitter_script
from tests.k8s.rendering import Resource, plain_name, rendered, the
from tests.k8s.services import Services, asked
from tests.k8s.test_references import secrets
from tests.rigs.ray_head import ray_head

SUBMISSION = "sweep-abcde"
EXPERIMENT = "/api/2.0/mlflow/experiments/get?experiment_id=0"


def address(key: str, sockets: Path) -> str:
    """The address of a database, as the example's Secret has it, on this machine."""
    stated = next(one for one in secrets() if one["metadata"]["name"] == "plimsoll-databases")
    url: str = stated["stringData"][key]
    return url.replace("@postgres:5432/", "@/") + f"?host={sockets}"


def test_each_of_the_two_has_its_own_database(database: Path) -> None:
    for key, name in (("study-storage", "studies"), ("mlflow-store", "mlflow")):
        with psycopg.connect(address(key, database)) as connection:
            connection.execute("CREATE TABLE mine (id integer)")
            told = connection.execute("SELECT current_user, current_database()").fetchone()
            assert told == (name, name)
            connection.execute("DROP TABLE mine")


def test_nobody_gets_into_the_others_database(database: Path) -> None:
    other = address("study-storage", database).replace("/studies?", "/mlflow?")

    assert "permission denied for database" in refusal(other)


def test_the_password_is_asked_for(database: Path) -> None:
    wrong = address("study-storage", database).replace("change-me-three", "guessed")

    assert "password authentication failed" in refusal(wrong)


def refusal(url: str) -> str:
    """Returns why the server lets nobody in.

    The client is a process of its own, since psycopg leaves a failed connection to the garbage
    collector.
    """
    words = [sys.executable, "-c", "import psycopg, sys; psycopg.connect(sys.argv[1])", url]
    tried = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert tried.returncode != 0
    return tried.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("mlflow:5000", 200),
        ("mlflow", 200),
        ("mlflow.plimsoll", 200),
        ("mlflow.plimsoll:5000", 200),
        ("mlflow.plimsoll.svc.cluster.local", 200),
        ("mlflow.plimsoll.svc.cluster.local:5000", 200),
        ("localhost:5000", 200),  # a port-forward
        ("127.0.0.1:32768", 200),
        ("evil.example.com", 403),
        ("mlflow.evil.example.com:5000", 403),
    ],
)
def test_mlflow_answers_to_its_names_and_to_no_other(
    host: str, status: int, services: Services
) -> None:
    assert asked(services.mlflow_port, EXPERIMENT, host) == status


@pytest.mark.thorough
def test_the_readiness_probe_sees_a_refused_name(services: Services) -> None:
    """It calls the API under the name that the sweep uses; /health would answer any name."""
    container = the(services.resources, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    probe = container["readinessProbe"]["httpGet"]
    host = probe["httpHeaders"][0]["value"]
    head = the(services.resources, "RayJob")["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    variables = environment(head["spec"]["containers"][0], services.resources, secrets())

    assert host == urlsplit(variables["MLFLOW_TRACKING_URI"]).netloc
    assert asked(services.mlflow_port, probe["path"], host) == 200
    assert asked(services.mlflow_port, probe["path"], "another:5000") == 403
    assert asked(services.mlflow_port, "/health", "another:5000") == 200


def test_the_names_are_those_of_the_services_namespace() -> None:
    resources = rendered("cloud")
    service = the(resources, "Service", "mlflow")
    arguments = the(resources, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    allowed = next(word for word in arguments if word.startswith("--allowed-hosts="))
    names = allowed.partition("=")[2].split(",")
    called = f"{service['metadata']['name']}.{service['metadata']['namespace']}"

    assert {"mlflow", "mlflow:*", called, f"{called}:*"} <= {*names}


@pytest.mark.thorough
def test_artifacts_go_through_the_server(services: Services, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note")
    client = mlflow.MlflowClient(f"http://127.0.0.1:{services.mlflow_port}")
    run = client.create_run(client.create_experiment("artifacts"))

    client.log_artifact(run.info.run_id, str(tmp_path / "note.txt"))

    assert run.info.artifact_uri.startswith("mlflow-artifacts:")
    assert [found.path for found in client.list_artifacts(run.info.run_id)] == ["note.txt"]
    with psycopg.connect(address("mlflow-store", services.sockets)) as connection:
        kept = connection.execute("SELECT run_uuid FROM runs").fetchall()
    assert (run.info.run_id,) in kept


@pytest.mark.thorough
def test_the_rendered_job_ends_with_a_sweep_in_mlflow(services: Services, tmp_path: Path) -> None:
    job = the(services.resources, "RayJob")
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    variables = services.here(environment(head, services.resources, secrets()))
    del variables["HOME"]
    mounted(services.resources, tmp_path)
    mounted_job = json.loads(json.dumps(job["spec"]).replace("/etc/plimsoll", str(tmp_path)))

    with ray_head(tmp_path, token=True, **variables) as environ:
        address = environ["RAY_API_SERVER_ADDRESS"]
        script = submitter_script(mounted_job, address=address, submission=SUBMISSION)
        submitter = subprocess.run(
            ["/bin/bash", "-ce", "--", script],
            env={name: value for name, value in environ.items() if name not in variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=340,  # pytest gives up at 400
            check=False,
        )
        told = job_information(address, environ["RAY_AUTH_TOKEN"])

    assert submitter.returncode == 0, submitter.stdout + submitter.stderr
    assert told["status"] == "SUCCEEDED", told["message"] + submitter.stdout
    assert told["entrypoint"] == mounted_job["entrypoint"]
    assert told["metadata"].items() >= job["spec"]["metadata"].items()
    runtime = yaml.safe_load(job["spec"]["runtimeEnvYAML"])
    assert told["runtime_env"]["env_vars"].items() >= runtime["env_vars"].items()
    assert "Best plans" in submitter.stdout
    url = f"{variables['PLIMSOLL_STUDY_STORAGE']}?host={variables['PGHOST']}"
    with psycopg.connect(url) as study:
        ended = study.execute("SELECT count(*) FROM trials WHERE state = 'COMPLETE'").fetchone()
    assert ended == (3,)
    assert measured_runs(variables["MLFLOW_TRACKING_URI"]) >= 3


def mounted(resources: list[Resource], folder: Path) -> None:
    """The specification, where the volume would be; its addresses are in the environment."""
    config = next(one for one in resources if plain_name(one) == "sweep-spec")
    spec: dict[str, Any] = yaml.safe_load(config["data"]["sweep.yaml"])
    spec["study"]["folder"] = str(folder / "kept")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(spec))


def job_information(address: str, token: str) -> dict[str, Any]:
    """Returns what the job server knows of the submission; without the token it tells nothing."""
    url = f"{address}/api/jobs/{SUBMISSION}"
    with pytest.raises(urllib.error.HTTPError, match=r"401|403"):
        urllib.request.urlopen(url, timeout=20)
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def measured_runs(uri: str) -> int:
    """Counts the trials with a throughput that MLflow has in the experiment of the sweep."""
    client = mlflow.MlflowClient(uri)
    experiments = [one for one in client.search_experiments() if "smoke" in one.name]
    assert experiments
    runs = client.search_runs([one.experiment_id for one in experiments])
    return sum("samples_per_second" in run.data.metrics for run in runs)
