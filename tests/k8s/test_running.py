"""The overlay `local` run by what its rendered manifests say.

Ray, PostgreSQL and MLflow are real; only addresses and folders are this machine's. What is
submitted are the rendered entry point, metadata and runtime environment, by the operator's own
commands.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import mlflow
import psycopg
import pytest
import yaml

from tests.commands import run_command
from tests.k8s.containers import environment, submitter_script
from tests.k8s.rendering import Resource, example_secrets, plain_name, rendered, the
from tests.k8s.services import Services, asked, postgres, tracking
from tests.rigs.ray_head import ray_head

pytestmark = pytest.mark.thorough
SUBMISSION = "sweep-abcde"


@pytest.fixture(scope="module")
def database() -> Iterator[Path]:
    """The overlay's PostgreSQL: the folder of its sockets, whose names have to be short."""
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # for root's tests the server runs as another user
        with postgres(rendered("local"), Path(folder)) as sockets:
            yield sockets


@pytest.fixture(scope="module")
def services(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The overlay's MLflow on that database."""
    with tracking(rendered("local"), database, tmp_path_factory.mktemp("mlflow")) as running:
        yield running


def address(key: str, sockets: Path) -> str:
    """The address of a database, as the example's Secret has it, on this machine."""
    named = {one["metadata"]["name"]: one["stringData"] for one in example_secrets()}
    url: str = named["plimsoll-databases"][key]
    return url.replace("@postgres:5432/", "@/") + f"?host={sockets}"


def test_each_of_the_two_has_its_own_database(database: Path) -> None:
    for key, name in (("study-storage", "studies"), ("mlflow-store", "mlflow")):
        with psycopg.connect(address(key, database)) as connection:
            connection.execute("CREATE TABLE mine (id integer)")
            place = connection.execute("SELECT current_user, current_database()").fetchone()
            assert place == (name, name)
            connection.execute("DROP TABLE mine")
    own = address("study-storage", database)
    assert "permission denied for database" in refusal(own.replace("/studies?", "/mlflow?"))
    assert "password authentication failed" in refusal(own.replace("change-me-three", "guessed"))


def refusal(url: str) -> str:
    """Returns why the server refuses a connection.

    The client is a process of its own, since psycopg leaves a failed connection to the garbage
    collector.
    """
    words = [sys.executable, "-c", "import psycopg, sys; psycopg.connect(sys.argv[1])", url]
    tried = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert tried.returncode != 0
    return tried.stderr


def test_mlflow_answers_to_its_names_and_to_no_other(services: Services) -> None:
    """The readiness probe calls the API under the name that the sweep uses."""
    container = the(services.resources, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    probe = container["readinessProbe"]["httpGet"]
    name = probe["httpHeaders"][0]["value"]
    head = the(services.resources, "RayJob")["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    variables = environment(head["spec"]["containers"][0], services.resources, example_secrets())
    own = ["mlflow", "mlflow.plimsoll", "mlflow.plimsoll.svc.cluster.local:5000", "localhost:5000"]
    others = ["evil.example.com", "mlflow.evil.example.com:5000"]

    assert name == urlsplit(variables["MLFLOW_TRACKING_URI"]).netloc
    answers = {host: asked(services.mlflow_port, probe["path"], host) for host in [*own, *others]}
    assert answers == dict.fromkeys(own, 200) | dict.fromkeys(others, 403)
    assert asked(services.mlflow_port, probe["path"], name) == 200


def test_the_rendered_job_ends_with_a_sweep_in_mlflow(services: Services, tmp_path: Path) -> None:
    job = the(services.resources, "RayJob")
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    variables = services.here(environment(head, services.resources, example_secrets()))
    del variables["HOME"]
    mount(services.resources, tmp_path)
    mounted_job = json.loads(json.dumps(job["spec"]).replace("/etc/plimsoll", str(tmp_path)))

    with ray_head(tmp_path, token=True, **variables) as environ:
        address = environ["RAY_API_SERVER_ADDRESS"]
        submitter = run_command(
            ["bash", "-ce", submitter_script(mounted_job, address=address, submission=SUBMISSION)],
            folder=tmp_path,
            environment={name: value for name, value in environ.items() if name not in variables},
            seconds=1500,
        )
        job_info = job_information(address, environ["RAY_AUTH_TOKEN"])

    assert submitter.returncode == 0, submitter.stdout + submitter.stderr
    assert job_info["status"] == "SUCCEEDED", job_info["message"] + submitter.stdout
    assert job_info["metadata"].items() >= job["spec"]["metadata"].items()
    runtime = yaml.safe_load(job["spec"]["runtimeEnvYAML"])
    assert job_info["runtime_env"]["env_vars"].items() >= runtime["env_vars"].items()
    assert "Best plans" in submitter.stdout
    with psycopg.connect(f"{variables['PLIMSOLL_STUDY_STORAGE']}?host={variables['PGHOST']}") as db:
        ended = db.execute("SELECT count(*) FROM trials WHERE state = 'COMPLETE'").fetchone()
    assert ended == (3,)
    client = mlflow.MlflowClient(variables["MLFLOW_TRACKING_URI"])
    experiments = [one.experiment_id for one in client.search_experiments() if "smoke" in one.name]
    runs = client.search_runs(experiments)
    assert sum("samples_per_second" in run.data.metrics for run in runs) >= 3


def mount(resources: list[Resource], folder: Path) -> None:
    """Writes the specification where the volume would be."""
    config = next(one for one in resources if plain_name(one) == "sweep-spec")
    spec: dict[str, Any] = yaml.safe_load(config["data"]["sweep.yaml"])
    spec["study"]["folder"] = str(folder / "kept")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(spec))


def job_information(address: str, token: str) -> dict[str, Any]:
    """Returns the job server's record of the submission, which it refuses without the token."""
    url = f"{address}/api/jobs/{SUBMISSION}"
    with pytest.raises(HTTPError, match=r"401|403"):
        urllib.request.urlopen(url, timeout=600)
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        information: dict[str, Any] = json.load(answer)
        return information
