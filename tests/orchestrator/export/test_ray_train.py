"""Export for Ray Train: runs on a cluster and on its own Ray, and the environment of ranks."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.observed_run import environment_of
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.settings.observed_run import FOLDER_VARIABLE
from search_spaces.settings.trainers import trainer_table
from tests.commands import run_command
from tests.orchestrator.export.folders import CLIP, ROOT, STEPS, run_folder, taken_of
from tests.rigs.ray_head import ray_head
from tests.workers.test_same_training import LOSS_TOLERANCE, losses_with_the_longest
from tests.workers.values import a_plan


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a name short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        yield Path(folder)


_PICKLED = """
import cloudpickle, torch
from torch.nn.utils import clip_grads_with_norm_
assert hasattr(clip_grads_with_norm_, "__wrapped__")
assert cloudpickle.loads(cloudpickle.dumps(clip_grads_with_norm_)) is clip_grads_with_norm_
"""


@pytest.mark.slow
def test_workers_that_ray_sends_a_script_to_use_their_own_recorder_of_clipping(
    tmp_path: Path,
) -> None:
    what = taken_of(a_plan(data=1), grad_clip=CLIP)
    write_bundle(export_bundle(what, "ray-train"), what, tmp_path / "out")
    ran = run_command(
        [sys.executable, "-c", _PICKLED],
        environment=environment_of(ExportManifest.read(tmp_path / "out"), tmp_path),
        seconds=600,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    "knobs",
    [
        {
            **{"checkpoint_ratio": 0.5, "batching": "grouped", "allocator": "mmap"},
            **{"zero_stage": 2, "micro_batch": 1, "offload_parameters": "cpu"},
        },
        {"engine": "deepspeed", "zero_stage": 3, "checkpoint_ratio": 0.5},
    ],
)
def test_on_a_cluster_the_ranks_train_as_a_plain_loop_does(
    knobs: dict[str, Any], tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = taken_of(a_plan(**knobs), grad_clip=CLIP)
    write_bundle(export_bundle(what, "ray-train"), what, tmp_path / "out")
    telling(tmp_path / "out" / "train.py")

    with ray_head(home, token=True, jobs=False, **watched(tmp_path / "out")) as environ:
        for name in ("HOME", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            monkeypatch.setenv(name, environ[name])
        lines = run_folder(tmp_path / "out", steps=1 + STEPS)

    inside = [line for line in lines if "environment" in line]
    lines = [line for line in lines if line not in inside]
    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert inside == [{"environment": "1048576" if "allocator" in knobs else None, "nice": here}]
    assert [line["step"] for line in lines] == list(range(1 + STEPS))
    losses = [line["loss"] for line in lines]
    assert losses == pytest.approx(losses_with_the_longest(CLIP)[: 1 + STEPS], rel=LOSS_TOLERANCE)


def watched(folder: Path) -> dict[str, str]:
    """Returns the environment of a cluster whose ranks the recorder of `run_folder` observes."""
    given = environment_of(
        ExportManifest.read(folder), folder.with_name(f"{folder.name}-recordings")
    )
    modules = os.pathsep.join([given["PYTHONPATH"], str(ROOT)])
    return {"PYTHONPATH": modules, FOLDER_VARIABLE: given[FOLDER_VARIABLE]}


def telling(script: Path) -> None:
    """Makes rank 0 print its environment and priority, through the queue of its losses."""
    at = "    device = ray.train.torch.get_device()\n"
    told = (
        '{"environment": os.environ.get("MALLOC_MMAP_THRESHOLD_"),'
        ' "nice": os.getpriority(os.PRIO_PROCESS, 0)}'
    )
    text = script.read_text()
    assert text.count(at) == 1
    script.write_text(text.replace(at, f"{at}    if rank == 0: config['lines'].put({told})\n"))


def test_what_its_engine_cannot_say_is_refused() -> None:
    torch, deepspeed = trainer_table()["ray-train"].expressed
    (split,) = torch.refusals(a_plan(tensor=2, data=1))

    assert "tensor is 2" in split
    for knobs in (torch, deepspeed):
        half = a_plan(engine=knobs.engine, zero_stage=3, precision="fp16")
        assert not list(knobs.refusals(half))


def test_on_several_hosts_the_folder_has_to_be_there(tmp_path: Path) -> None:
    what = taken_of(a_plan(data=4, micro_batch=1), hosts=2)
    write_bundle(export_bundle(what, "ray-train"), what, tmp_path / "out")
    told = (tmp_path / "out" / "README.md").read_text()

    assert "All nodes need this folder at the same path" in told
    assert "$HEAD" not in told  # it is started once, where the driver is to be
    assert "\n    python train.py\n" in told
