"""`plimsoll submit` against a job server with token authentication."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import psutil
import pytest

from orchestrator.cluster.jobs import DEFAULT_EXCLUDES, _heaviest
from orchestrator.cluster.ray_private import packed_sizes
from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from tests.commands import run_command
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import plimsoll_in, submitted
from tests.proxies import proxy_to
from tests.rigs.ray_head import PID, Ports, ray_head

SPEC = """
model: {{name: "awkward_model:make", config: {{pass_seconds: 0.01}}}}
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 128, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 64]}}
objective: {{max_seconds: 12, interval: 0.0001, max_steps: 100000}}
validation: {{enabled: false}}
study: {{storage: "sqlite:///{folder}/study.db"}}
tracking: {{enabled: false}}
"""
ADDRESS = "RAY_API_SERVER_ADDRESS"


@pytest.fixture
def work(home: Path, tmp_path: Path) -> Path:
    """A user's folder, with files that must not go to a cluster."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(awkward_model.__file__, folder / "awkward_model.py")
    (folder / "sweep.yaml").write_text(SPEC.format(folder=tmp_path))
    (folder / "weights.safetensors").write_bytes(b"x" * 150 * 2**20)
    return folder


def submit(work: Path, cluster: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return plimsoll_in(cluster, "submit", "sweep.yaml", *options, folder=work)


@pytest.mark.thorough
def test_a_job_that_dies_is_followed_by_one_that_goes_on(
    work: Path, cluster: dict[str, str]
) -> None:
    """A second submission of the study meanwhile follows the same job."""
    begun = submit(work, cluster, "--no-follow")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert "Job plimsoll-sweep submitted" in begun.stdout

    log, code = submitted(
        work, cluster, at=lambda log: "trial 1 starts" in log, do=lambda: _driver(work).kill()
    )

    assert code == 0, log
    assert "Job plimsoll-sweep is already running study sweep" in log
    assert "a new job resumes where it stopped" in log
    assert "Job plimsoll-sweep-2 submitted" in log
    assert "trial 1 was running when its driver died" in log
    assert "Best plans" in log
    assert log.count("trial 0 starts") == 1
    records = load_records(load_spec(work / "sweep.yaml"), "sweep")
    assert Counter(record.plan.micro_batch for record in records) == {1: 1, 64: 1}


def _driver(work: Path) -> psutil.Process:
    """Returns the sweep's process: its study is in the test's folder, its code where Ray put it."""
    found = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "tune" in (process.info["cmdline"] or [])
        and any(str(work.parent) in file.path for file in process.open_files())
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("options", "token", "words"),
    [
        ((), "0" * 32, "does not accept the token: set RAY_AUTH_TOKEN"),
        (("--address", "http://127.0.0.1:9"), None, "http://127.0.0.1:9 does not accept jobs"),
        (("--address", "head:8265"), None, "give the job server's URL, such as http://HEAD:8265"),
        (("--working-dir", "/usr/share/doc"), None, "is not in --working-dir"),
        (("--env", "NOT_SET_ANYWHERE"), None, "not set in this shell"),
        (("--requirements", "none.txt"), None, "no such file"),
    ],
)
def test_what_a_user_does_wrong_is_one_sentence(
    options: tuple[str, ...], token: str | None, words: str, work: Path, cluster: dict[str, str]
) -> None:
    ended = submit(work, cluster | ({"RAY_AUTH_TOKEN": token} if token else {}), *options)

    assert ended.returncode == 2
    assert words in ended.stderr.replace("\n", " ")
    assert "Traceback" not in ended.stderr


@pytest.mark.thorough
def test_a_job_whose_answer_is_lost_is_not_started_twice(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    asks = (
        "from orchestrator.cluster.jobs import JobServer, Submission;"
        "server = JobServer(None, patience_seconds=600);"
        "job = Submission(study='s', entrypoint='true', working_dir='.', excludes=(),"
        " environment=(), requirements=None, metadata=());"
        "server.submit(job, 'answer-is-lost');"
        "print([job.id for job in server.jobs() if job.id == 'answer-is-lost'])"
    )
    with proxy_to(int(cluster[ADDRESS].rpartition(":")[2])) as line:
        line.swallow(b"POST /api/jobs/")
        told = run_command(
            [sys.executable, "-c", asks],
            folder=tmp_path,
            environment=cluster | {ADDRESS: f"http://127.0.0.1:{line.port}"},
        )

    assert told.stdout == "['answer-is-lost']\n", told.stderr
    assert "INFO" not in told.stderr
    assert line.swallowed == 1


def test_files_that_make_it_too_large_are_named(work: Path, cluster: dict[str, str]) -> None:
    (work / "data.bin").write_bytes(b"x" * 110 * 2**20)
    refused = submit(work, cluster)

    assert refused.returncode == 2
    assert "110 MiB to send" in refused.stderr
    assert "data.bin (110 MiB)" in refused.stderr
    assert "weights" not in refused.stderr


def test_only_what_is_packed_is_counted_by_folder(tmp_path: Path) -> None:
    sizes = {".venv/lib/big.so": 30, "ignored/x.bin": 20, "kept.pt": 10, "logs/run/a.log": 5}
    sizes |= {"many/deep/p": 4, "many/deep/q": 3, "two/a/b": 2, "two/c": 2}
    for name, mib in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * mib * 2**20)
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "logs" / ".rayignore").write_text("*.log\n")

    packed = packed_sizes(tmp_path, DEFAULT_EXCLUDES)

    assert sum(packed.values()) >> 20 == 11
    words = ", ".join(_heaviest(packed))
    assert words.startswith("many/deep (7 MiB), many (7 MiB), two (4 MiB), ")
    assert "many/deep/p (4 MiB)" in words


@pytest.mark.thorough
def test_jobs_get_what_is_named_and_tell_where_they_come_from(
    work: Path, cluster: dict[str, str]
) -> None:
    """The model's module prints its environment and raises: the sweep never begins."""
    (work / "awkward_model.py").write_text(
        "import os\n"
        "raise ValueError(' '.join([os.environ['GIVEN'], os.environ['KEPT'],"
        " os.environ['RAY_JOB_STOP_WAIT_TIME_S'],"
        " *sorted(name for name in os.listdir('.') if name != '__pycache__')]))\n"
    )
    ended = submit(
        work, cluster | {"KEPT": "kept"}, "--env", "GIVEN=a b", "--env", "KEPT", "--trials", "1"
    )

    assert ended.returncode == 2  # as the job's own
    assert "another one" not in ended.stderr
    assert "INFO" not in ended.stderr
    assert "a b kept 30 awkward_model.py sweep.yaml" in ended.stdout
    asked = (
        "from ray.job_submission import JobSubmissionClient as C; import os, json;"
        "print(json.dumps([j.metadata for j in C(os.environ['RAY_API_SERVER_ADDRESS']).list_jobs()"
        " if '--trials 1' in j.entrypoint]))"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], env=cluster, capture_output=True, text=True, check=True
    ).stdout
    for words in ('"plimsoll_study": "sweep"', '"plimsoll_spec": "sweep.yaml"', '"model": "awkwar'):
        assert words in told


@pytest.mark.thorough
def test_a_head_that_is_killed_costs_the_trial_under_way(work: Path, home: Path) -> None:
    """KubeRay starts another head at the same address, which does not know the job."""
    ports, token = Ports(), "0123456789abcdef0123456789abcdef"
    spec = work / "sweep.yaml"  # whose trials last longer than the log is behind
    spec.write_text(spec.read_text().replace("max_seconds: 4", "max_seconds: 20"))

    def head() -> AbstractContextManager[dict[str, str]]:
        return ray_head(home, token=True, ports=ports, RAY_AUTH_TOKEN=token)

    with ExitStack() as stack:
        environ = stack.enter_context(head())

        def kill_and_start_another() -> None:
            os.killpg(int(environ[PID]), signal.SIGKILL)
            stack.enter_context(head())

        log, code = submitted(
            work, environ, at=lambda log: "trial 1 starts" in log, do=kill_and_start_another
        )

    assert code == 0, log
    assert "(its head node restarted): a new job resumes where it stopped" in log, log
    assert "trial 1 was running when its driver died" in log, log
    records = load_records(load_spec(work / "sweep.yaml"), "sweep")
    assert Counter(record.plan.micro_batch for record in records) == {1: 1, 64: 1}
