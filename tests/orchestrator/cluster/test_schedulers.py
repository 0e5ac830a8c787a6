"""`plimsoll submit --to slurm | sky | kuberay`: the files, and runs of them where they can run."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator.cluster.slurm import follow_job, queued_job, submit_script
from orchestrator.export.cluster_job import SBATCH, SKY, ClusterJob, render_job
from tests.commands import run_command
from tests.k8s import crd_check, policies
from tests.k8s.pods import pods
from tests.k8s.rendering import K8S
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import plimsoll_in
from tests.orchestrator.cluster.test_submit import SPEC
from tests.rigs.ray_head import BIN, environment
from tests.rigs.slurm import slurm

ROOT = Path(__file__).parents[3]
SKY_KEYS = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "setup", "run"}
KUBERAY = ("--to", "kuberay", "--image", "plimsoll:0.1.0")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A user's folder with a specification for two CPU ranks."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(awkward_model.__file__, folder / "awkward_model.py")
    (folder / "sweep.yaml").write_text(SPEC.format(folder=tmp_path))
    return folder


def submit(work: Path, *options: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environ = environment(work.parent, **{"PYTHONPATH": str(ROOT), **extra})
    return plimsoll_in(environ, "submit", "sweep.yaml", *options, folder=work)


def dry(work: Path, *options: str) -> str:
    """Returns what would be sent."""
    ended = submit(work, "--dry-run", *options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.cases_by_default(5)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--to slurm", "there is no squeue in the path: run this on a login node"),
        ("--to slurm --gpus-per-node 2", "but cluster.device is cpu"),
        ("--to slurm --set cluster.workers=auto", "auto, so the size of a node is open"),
        ("--to slurm --set cluster.device=cuda --gpus-per-node 1", "ask for 2 GPUs"),
        ("--to slurm --data-volume corpus", "--data-volume is for --to kuberay, not for slurm"),
        ("--partition gpu", "--partition is for --to slurm, not for ray"),
        ("--to slurm --account=a\\nb", "give one word"),
        ("--to sky", "--to sky: give --image"),
        ("--to sky --image x", "there is no sky in the path"),
        ("--to sky --image x --set cluster.device=cuda", "SkyPilot's name of the GPU"),
        ("--to kuberay", "--to kuberay: give --image"),
        ("--to kuberay --image x", "there is no kubectl in the path"),
        ("--to kuberay --image x --set space.zero_stage=[0,\\t3]", "two shells read the command"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_one_sentence(
    options: str, words: str, work: Path
) -> None:
    given = [word.replace("\\n", "\n").replace("\\t", " ") for word in options.split(" ")]
    ended = submit(work, *given, PATH=str(BIN))

    assert ended.returncode == 2, ended.stdout
    assert words in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_what_ray_would_get_is_printed(work: Path) -> None:
    sent = json.loads(dry(work, "--env", "A=b"))

    assert sent["entrypoint"] == "plimsoll tune sweep.yaml --plain"
    assert sent["runtime_env"]["env_vars"]["A"] == "b"


def test_a_script_of_slurm_asks_for_the_nodes_of_the_specification(work: Path) -> None:
    options = ("--set", "cluster.workers=16", "--set", "cluster.device=cuda")
    options += ("--set", "cluster.cpus_per_worker=7", "--set", "cluster.host_memory_gib=900")
    options += ("--nodes", "2", "--gpu", "h100", "--partition", "main", "--account", "lab")
    script = dry(work, "--to", "slurm", *options, "--time", "4:00:00", "--sbatch=--qos=high")
    lines = {line for line in script.splitlines() if line.startswith("#SBATCH")}

    assert lines >= {
        f"#SBATCH --{option}"
        for option in (
            *("nodes=2", "cpus-per-task=56", "gres=gpu:h100:8", "mem=900G", "partition=main"),
            *("account=lab", "time=4:00:00", "qos=high", "requeue", "signal=B:USR1@120"),
        )
    }
    assert f"PATH={Path(sys.executable).parent}:" in script
    assert "--num-gpus=8" in script
    assert "plimsoll tune sweep.yaml --plain --set cluster.workers=16" in script
    assert "container" not in script
    image = dry(work, "--to", "slurm", "--image", "registry.example#plimsoll:0.1.0")
    assert "--container-image=registry.example#plimsoll:0.1.0" in image
    assert "export PATH" not in image  # of the user's own environment


def of_ray(job: str) -> list[str]:
    """Returns processes that the job left, and folders of its Ray."""
    listed = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    left = [line for line in listed.splitlines() if f"SLURM_JOB_ID={job} " in line]
    return left + [str(folder) for folder in Path("/tmp").glob("plimsoll-ray-*")]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.alone
def test_a_sweep_runs_on_two_nodes_of_slurm(work: Path) -> None:
    with slurm() as environ:
        ended = submit(work, "--to", "slurm", "--nodes", "2", "--trials", "1", **environ)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Job 1 submitted to Slurm: plimsoll tune sweep.yaml --plain" in ended.stdout
    assert "2 ranks on cpu, 1 a node" in ended.stdout
    assert "Best plans" in ended.stdout
    assert of_ray("1") == []


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.parametrize(
    "ending", ["exit 75", "echo waits; trap 'exit 143' TERM; sleep 600 & wait"]
)
def test_a_job_that_machines_ended_is_queued_again_and_its_code_is_told(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second case is Slurm's notice that the job's time is almost over."""
    (tmp_path / "driver.sh").write_text(f"test -e began && exit 3; touch began; {ending}")
    job = ClusterJob(
        name="again", command="bash driver.sh", nodes=1, ranks=1, cpus=1, gpus=0, retries=1
    )
    script, log = render_job(SBATCH, job, path=str(BIN), options=()), []

    def write(text: str) -> None:
        log.append(text)
        if "waits\n" in text:
            subprocess.run(["scancel", "--batch", "--signal=USR1", number], check=True)
        if "(BeginTime)" in text:  # Slurm would wait for two minutes
            assert queued_job("again", tmp_path) == number
            words = ["scontrol", "update", f"jobid={number}", "StartTime=now"]
            subprocess.run(words, check=True)

    with slurm() as environ:
        monkeypatch.setenv("SLURM_CONF", environ["SLURM_CONF"])
        number = submit_script(script, tmp_path, {})
        ended = follow_job(number, tmp_path / f"again-{number}.log", write)
        assert queued_job("again", tmp_path) is None

    assert ended == ("FAILED", 3), "".join(log)
    assert "Slurm puts the job back into the queue" in "".join(log)
    assert of_ray(number) == []


def test_a_task_of_skypilot_has_its_keys(work: Path) -> None:
    (work / "packages.txt").write_text("plimsoll-tune\n")
    options = ("--set", "cluster.device=cuda", "--gpu", "H100", "--nodes", "2")
    text = dry(work, "--to", "sky", *options, "--requirements", "packages.txt", "--env", "A=b: c")
    task = yaml.safe_load(text)

    assert task.keys() == SKY_KEYS
    assert task["resources"] == {"accelerators": "H100:1"}
    assert task["num_nodes"] == 2
    assert task["envs"]["A"] == "b: c"
    assert task["secrets"] == {"RAY_AUTH_TOKEN": None}
    assert task["setup"] == "pip install -r packages.txt\n"
    assert task["workdir"] == str(work)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.alone
def test_a_task_of_skypilot_runs_its_command_on_a_ray_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(
        "import ray, sys; ray.init(); print(ray.cluster_resources()['CPU']); sys.exit(3)"
    )
    job = ClusterJob(
        name="sky", command="python driver.py", nodes=1, ranks=3, cpus=3, gpus=0, image="x"
    )
    task = yaml.safe_load(render_job(SKY, job, workdir=".", setup=""))
    node = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "127.0.0.1"}
    node |= {"RAY_AUTH_TOKEN": "a" * 64, "PATH": f"{BIN}:{os.environ['PATH']}"}
    ended = run_command(
        ["bash", "-c", task["run"]],
        folder=tmp_path,
        environment=environment(tmp_path, **node),
        seconds=600,
    )

    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "\n3.0\n" in ended.stdout
    with socket.socket() as listener:
        assert listener.connect_ex(("127.0.0.1", 6390)) != 0  # Ray has ended
    assert not [*Path("/tmp").glob("plimsoll-ray-*")]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kubernetes_takes_the_manifests_of_a_sweep(device: str, work: Path) -> None:
    names = ("--data-volume", "corpus", "--hf-secret", "hub", "--pull-secret", "registry")
    gpus = ("--set", "cluster.device=cuda", "--gpu", "NVIDIA-H100-80GB-HBM3", "--nodes", "2")
    text = dry(work, *KUBERAY, *names, *(gpus if device == "cuda" else ()))
    configmap, job = yaml.safe_load_all(text)

    assert list(crd_check.complaints(job)) == []
    texts = [(K8S / f"base/{name}.yaml").read_text() for name in ("limits", "namespace")]
    around = [one for text in texts for one in yaml.safe_load_all(text)]
    assert list(policies.complaints([configmap, job, *around])) == []
    assert configmap["data"]["sweep.yaml"] == (work / "sweep.yaml").read_text()
    assert "awkward_model.py" in configmap["data"]
    assert job["spec"]["entrypoint"].endswith("--set study.folder=/data/plimsoll-runs")
    submitter, head, worker = (pod.spec for pod in pods([job]))
    for pod in (submitter, head, worker):
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["containers"][0]["image"] == KUBERAY[-1]
    for pod in (head, worker):
        variables = {one["name"]: one for one in pod["containers"][0]["env"]}
        # workers, which run any model's code, read what the head has fetched
        assert ("HF_TOKEN" in variables) is (pod is head)
        assert variables["HF_HOME"]["value"].startswith("/data/")
        assert {"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}} in pod["volumes"]
    group = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    limits = worker["containers"][0]["resources"]["limits"]
    if device == "cuda":
        assert (group["replicas"], limits["nvidia.com/gpu"]) == (2, "1")
        assert worker["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    else:
        assert (group["replicas"], limits["cpu"], limits["memory"]) == (1, "3", "10Gi")
