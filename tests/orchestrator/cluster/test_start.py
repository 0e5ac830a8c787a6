"""Start of a sweep on this machine: processes of a worker group, and what its ranks import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.cluster.cli import PLIMSOLL
from tests.rigs.ray_head import environment

ROOT = str(Path(__file__).parents[3])
# In the second rank, says what is imported, and which processes its raylet has started; the first
# rank also measures a block of transformers
MODEL = """
import json, os, sys
from pathlib import Path
import psutil, torch

class Net(torch.nn.Linear):
    def forward(self, input):
        return super().forward(input).mean()

def make():
    if os.environ.get("RANK") == "1":
        titles = [" ".join(one.cmdline()) for one in psutil.Process().parent().children()]
        Path("rank.json").write_text(json.dumps([sorted(sys.modules), titles]))
    return Net(2, 2), lambda numbers: {"input": torch.ones(len(numbers), 2)}
"""
SPEC = """
model: small_net:make
cluster: {device: cpu, workers: 2}
train: {global_batch: 4, precision: fp32}
objective: {max_seconds: 1}
"""
ACTORS = {"GroupQueues", "ResourceTrainable", "TrainController", "GroupChannel"}
OF_RAY = {"DashboardAgent", "RuntimeEnvAgent", "SynchronizationActor", "IDLE", "RayTrainWorker"}


@pytest.mark.thorough
def test_a_group_starts_no_process_and_imports_no_library_in_vain(tmp_path: Path) -> None:
    (tmp_path / "small_net.py").write_text(MODEL)
    (tmp_path / "sweep.yaml").write_text(SPEC)
    command = [PLIMSOLL, "tune", "sweep.yaml", "--trials", "1", "--no-validation", "--plain"]
    subprocess.run(command, cwd=tmp_path, env=environment(tmp_path, PYTHONPATH=ROOT), check=True)
    modules, titles = json.loads((tmp_path / "rank.json").read_text())

    heavy = {"transformers", "deepspeed", "mlflow", "optuna", "ray.tune", "rich", "typer"}
    assert heavy.isdisjoint(modules)
    names = {title.removeprefix("ray::").partition(".")[0].strip() for title in titles}
    assert ACTORS <= names <= ACTORS | OF_RAY


def test_the_first_rank_gives_its_address_before_it_loads_torch() -> None:
    """The others wait for it."""
    script = "from orchestrator.cluster import trainer, worker_group; trainer._listen()"
    ends = "; import sys; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script + ends], capture_output=True, check=True)

    assert run.stdout == b"False\n"
