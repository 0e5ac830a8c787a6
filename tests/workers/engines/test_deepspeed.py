"""Engine `deepspeed` on real ranks: it trains as a plain loop does and leaves nothing behind."""

import dataclasses
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from search_spaces.trial import Measured, OutOfMemory, TrialRequest
from tests.workers.launch import Group
from tests.workers.odd_models import HUGE_BYTES
from tests.workers.test_same_training import LOSS_TOLERANCE, MORE, SPEC, reference_losses
from tests.workers.values import LLAMA, a_request, a_spec, odd_model
from workers.engines.build import load_engine
from workers.parallel.deepspeed_features import (
    load_cpu_adam,
    missing_for_cpu_adam,
    missing_for_nvme,
)
from workers.worker import Worker

ROOT = Path(__file__).parents[3]
NO_NVME = missing_for_nvme(torch.device("cpu"))
CPU_ADAM_TOLERANCE = 1e-4  # relative; it is compiled with other roundings than torch's AdamW
BUILD_SECONDS = 1700.0  # DeepSpeedCPUAdam is compiled once on a machine, 50 s on idle cores


@MORE
def test_a_model_with_an_odd_number_of_parameters_trains_in_shards(pair: Group) -> None:
    request = a_request(a_spec(model=odd_model("none", uneven=True)), zero_stage=2)
    sharded = dataclasses.replace(request.plan, engine="deepspeed")

    reference = pair.run(request)
    outcome = pair.run(dataclasses.replace(request, plan=sharded))

    assert isinstance(outcome, Measured), outcome
    assert isinstance(reference, Measured), reference
    assert outcome.losses == pytest.approx(reference.losses, rel=LOSS_TOLERANCE)


def _left_behind(worker: Worker) -> tuple[str, ...]:
    """Names DeepSpeed's objects of a plan that are alive in this process."""
    import gc

    from deepspeed.comm import comm
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.utils import groups

    gc.collect()
    alive = {type(found).__name__ for found in gc.get_objects() if type(found) is DeepSpeedEngine}
    kept = [name for name, value in vars(groups).items() if name.endswith("_GROUP") and value]
    return (*alive, *kept, *(["cdb"] if comm.cdb is not None else []))


@pytest.mark.parametrize(
    ("zero_stage", "where"),
    [(2, "backward"), *(pytest.param(3, one, marks=MORE) for one in ("forward", "backward"))],
)
def test_when_one_rank_runs_out_the_others_learn_it_at_once(
    pair: Group, zero_stage: int, where: str
) -> None:
    spec = a_spec(model=odd_model("allocates", where=where, rank=1, call=3))
    request = a_request(spec, engine="deepspeed", zero_stage=zero_stage, micro_batch=4)

    first, other = pair.run_on_all(request)

    assert first == other
    assert isinstance(first, OutOfMemory), first
    assert (first.rank, first.phase) == (1, where)
    assert first.wanted_bytes is not None
    assert first.wanted_bytes >= HUGE_BYTES
    after = pair.run(a_request(SPEC, engine="deepspeed", zero_stage=zero_stage))
    assert isinstance(after, Measured)
    assert after.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
    assert pair.call(_left_behind) == [(), ()]


def needs_cpu_adam(test: Any) -> Any:
    """Marks a test that compiles DeepSpeed's Adam where nobody has."""
    lack = missing_for_cpu_adam()
    test = pytest.mark.skipif(lack is not None, reason=str(lack))(test)
    return MORE(pytest.mark.timeout(BUILD_SECONDS + 60)(test))


def _build(worker: Worker, request: TrialRequest) -> None:
    load_engine(request.plan, worker.device)


OFFLOADED = a_request(
    SPEC, engine="deepspeed", zero_stage=3, offload_optimizer="cpu", offload_parameters="cpu"
)


def _out_of_date(_: Worker) -> str:
    """Output of a dry run of the environment's ninja for DeepSpeed's Adam."""
    folder = cpp_extension._get_build_directory("cpu_adam", verbose=False)
    ninja = Path(sys.executable).with_name("ninja")
    return subprocess.run(
        [ninja, "-n"], cwd=folder, capture_output=True, check=True
    ).stdout.decode()


@needs_cpu_adam
def test_what_is_compiled_is_known_to_the_environments_ninja(alone: Group) -> None:
    """Another ninja on the machine would recompile in turns with the environment's."""
    alone.call(_build, OFFLOADED, seconds=BUILD_SECONDS)

    assert alone.call(_out_of_date) == ["ninja: no work to do.\n"]


def _load_again(_: Worker) -> None:
    load_cpu_adam()


@needs_cpu_adam
def test_what_is_loaded_waits_for_nobody_who_compiles(alone: Group) -> None:
    """Another environment on the machine may compile for minutes in the middle of a trial."""
    alone.call(_build, OFFLOADED, seconds=BUILD_SECONDS)
    folder = Path(cpp_extension._get_build_directory("cpu_adam", verbose=False))

    with (folder / "plimsoll.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        alone.call(_load_again)


@needs_cpu_adam
def test_what_a_killed_process_left_is_waited_for_by_nobody(tmp_path: Path) -> None:
    """torch waits for its lock files without end; DeepSpeed meets some of them by itself."""
    load_features, folders = "load_cpu_adam()", ["deepspeed_shm_comm", "cpu_adam"]
    if NO_NVME is None:
        load_features += "; load_nvme()"
        folders += ["pin_memory", "async_io"]
    for name in folders:
        compiled = Path(cpp_extension._get_build_directory(name, verbose=False))
        shutil.copytree(compiled, tmp_path / name)
        (tmp_path / name / "lock").touch()
    script = f"""
import torch
from workers.parallel.deepspeed_features import load_cpu_adam, load_deepspeed, load_nvme
load_deepspeed(torch.device("cpu"))
{load_features}
import deepspeed
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed()
"""
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", script], env=environment, timeout=BUILD_SECONDS, check=True
    )


@needs_cpu_adam
def test_offload_to_the_host_trains_the_same(pair: Group) -> None:
    pair.call(_build, OFFLOADED, seconds=BUILD_SECONDS)
    half = dataclasses.replace(OFFLOADED.plan, zero_stage=2, offload_parameters="none")

    for plan in (OFFLOADED.plan, half):
        outcome = pair.run(dataclasses.replace(OFFLOADED, plan=plan))

        assert isinstance(outcome, Measured), outcome
        assert outcome.losses == pytest.approx(reference_losses(), rel=CPU_ADAM_TOLERANCE)


@MORE  # building what DeepSpeed reads and writes with takes minutes
@pytest.mark.timeout(2 * BUILD_SECONDS + 60)
@pytest.mark.skipif(NO_NVME is not None, reason=str(NO_NVME))
def test_offload_to_nvme_trains_the_same(pair: Group, tmp_path: Any) -> None:
    """Weights take some MiB, since DeepSpeed does not move tensors smaller than a request."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 4000}
    spec = a_spec(
        model={**LLAMA, "config": {**LLAMA["config"], **wide}},
        cluster={"nvme_folder": str(tmp_path)},
    )
    plan = dataclasses.replace(OFFLOADED.plan, offload_optimizer="nvme", offload_parameters="nvme")
    request = TrialRequest(number=0, plan=plan, spec=spec)
    pair.call(_build, request, seconds=2 * BUILD_SECONDS)

    on_host, on_nvme = (
        pair.run(dataclasses.replace(request, plan=each)) for each in (OFFLOADED.plan, plan)
    )

    assert isinstance(on_host, Measured), on_host
    assert isinstance(on_nvme, Measured), on_nvme
    assert on_nvme.losses == pytest.approx(on_host.losses, rel=CPU_ADAM_TOLERANCE)
    assert any(path.stat().st_size for path in tmp_path.rglob("*.swp"))
