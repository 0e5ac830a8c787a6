"""Engine `deepspeed` on real ranks: it trains as a plain loop does and leaves nothing behind."""

from __future__ import annotations

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
from tests.covering import every_value
from tests.workers.launch import CALL_SECONDS, Group
from tests.workers.odd_models import HUGE_BYTES
from tests.workers.test_same_training import (
    GRADIENT_TOLERANCE,
    LOSS_TOLERANCE,
    SPEC,
    reference_gradients,
    reference_losses,
)
from tests.workers.values import LLAMA, a_plan, a_request, a_short_request, a_spec, odd_model
from workers.data.batches import batch_source
from workers.engines.build import load_engine
from workers.engines.stopwatch import stopwatch_for
from workers.models.load import build
from workers.parallel.deepspeed_features import (
    load_cpu_adam,
    missing_for_cpu_adam,
    missing_for_nvme,
)
from workers.prepare import prepare
from workers.worker import Worker

ROOT = Path(__file__).parents[3]
MIB = 2**20
NO_NVME = missing_for_nvme(torch.device("cpu"))
CPU_ADAM_TOLERANCE = 1e-4  # relative; it is compiled with other roundings than torch's AdamW
BUILD_SECONDS = 600.0  # DeepSpeedCPUAdam is compiled once on a machine, 50 s on idle cores
PLANS: tuple[dict[str, Any], ...] = (
    {"zero_stage": 0, "micro_batch": 2, "checkpoint_ratio": 0.5},
    {"zero_stage": 1, "micro_batch": 1, "overlap": False},
    {"zero_stage": 2, "micro_batch": 4, "checkpoint_ratio": 1.0, "batching": "packed"},
    {"zero_stage": 2, "micro_batch": 1, "contiguous_gradients": False, "bucket_mib": 1},
    {"zero_stage": 3, "micro_batch": 1, "checkpoint_ratio": 0.5, "batching": "grouped"},
    {"zero_stage": 3, "micro_batch": 4, "overlap": False, "prefetch_mib": 1},
)


def test_a_model_with_an_odd_number_of_parameters_trains_in_shards(pair: Group) -> None:
    request = a_request(a_spec(model=odd_model("none", uneven=True)), zero_stage=2)
    sharded = dataclasses.replace(request.plan, engine="deepspeed")

    reference = pair.run(request)
    outcome = pair.run(dataclasses.replace(request, plan=sharded))

    assert isinstance(outcome, Measured), outcome
    assert isinstance(reference, Measured), reference
    assert outcome.losses == pytest.approx(reference.losses, rel=LOSS_TOLERANCE)


@pytest.mark.cases_by_default(3)
@pytest.mark.parametrize("knobs", PLANS, ids=str)
def test_the_losses_are_those_of_the_plain_loop(pair: Group, knobs: dict[str, Any]) -> None:
    outcome = pair.run(a_request(SPEC, engine="deepspeed", **knobs))

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_one_rank_alone_trains_the_same(alone: Group, zero_stage: int) -> None:
    plan = a_plan(engine="deepspeed", data=1, micro_batch=4, zero_stage=zero_stage)

    outcome = alone.run(TrialRequest(number=0, plan=plan, spec=SPEC))

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def test_clipping_and_schedule_are_those_of_engine_torch(pair: Group) -> None:
    spec = a_spec(train={"grad_clip": 0.5, "schedule": "linear", "warmup_steps": 3})

    losses = [
        pair.run(a_request(spec, engine=engine, zero_stage=zero_stage)).losses
        for engine, zero_stage in (("torch", 0), ("deepspeed", 0), ("deepspeed", 2))
    ]

    assert losses[1] == pytest.approx(losses[0], rel=LOSS_TOLERANCE)
    assert losses[2] == pytest.approx(losses[0], rel=LOSS_TOLERANCE)
    assert losses[0] != pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_bf16_learns(pair: Group, zero_stage: int) -> None:
    request = a_request(SPEC, engine="deepspeed", zero_stage=zero_stage, precision="bf16")

    outcome = pair.run(request)

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses == pytest.approx(reference_losses(), rel=0.02)
    assert outcome.memory.anatomy.weights < 0.6 * 424_192  # of fp32


def _moved(worker: Worker, request: TrialRequest) -> dict[str, Any]:
    """Change of each weight by one step of SGD with rate 1, gathered by DeepSpeed."""
    plan = request.plan
    load_engine(plan, worker.device)
    import deepspeed

    from search_spaces.settings.deepspeed_config import render_deepspeed
    from workers.engines.deepspeed import start_deepspeed

    mesh = worker.group.acquire(30.0, plan)
    model = build(SPEC.model, SPEC.train, attention="eager")
    source = batch_source(model, SPEC)
    training = start_deepspeed(
        model,
        render_deepspeed(plan, prepare(SPEC), SPEC, "cpu"),
        mesh,
        worker.device,
        SPEC.train,
        lambda module: torch.optim.SGD(module.parameters(), lr=1.0),
    )

    def whole() -> dict[str, torch.Tensor]:
        weights = dict(training.module.named_parameters())
        with deepspeed.zero.GatheredParameters(list(weights.values()), enabled=plan.zero_stage > 2):
            return {name: weight.detach().clone() for name, weight in weights.items()}

    before = whole()
    given = source.step(plan, mesh.place.data if mesh else 0, 0)
    training.step(given.batches, given.targets, stopwatch_for(worker.device))
    after = whole()
    training.close()
    return {name: (before[name] - after[name]).numpy() for name in before}


@pytest.mark.parametrize(("zero_stage", "micro_batch"), [(0, 1), (1, 2), (2, 1), (3, 2)])
def test_a_step_moves_the_weights_by_the_gradient_of_the_mean_loss(
    pair: Group, zero_stage: int, micro_batch: int
) -> None:
    plan = a_plan(engine="deepspeed", zero_stage=zero_stage, micro_batch=micro_batch)
    expected = reference_gradients()
    largest = max(gradient.abs().max().item() for gradient in expected.values())

    for moved in pair.call(_moved, TrialRequest(number=0, plan=plan, spec=SPEC)):
        assert moved.keys() == expected.keys()
        for name, gradient in expected.items():
            worst = (torch.from_numpy(moved[name]) - gradient).abs().max().item()
            assert worst < GRADIENT_TOLERANCE * largest, name


def test_states_fall_with_the_stage(pair: Group) -> None:
    found = [
        pair.run(a_short_request(engine="deepspeed", zero_stage=stage)).memory.anatomy
        for stage in (0, 1, 2, 3)
    ]
    weights, gradients = found[0].weights, found[0].gradients

    assert [states.weights for states in found[:3]] == [weights] * 3
    assert found[3].weights == pytest.approx(weights / 2, rel=0.01)  # but for the small ones
    assert [states.gradients / gradients for states in found] == [1, 1, 0.5, 0.5]
    # Adam's two states, halved from stage 1 on, and beside them a master copy of the half
    assert [states.optimizer_states / weights for states in found] == pytest.approx(
        [2, 1.5, 1.5, 1.5], rel=0.01
    )


@pytest.mark.thorough
def test_engines_in_turn_leave_nothing_to_each_other(pair: Group) -> None:
    in_turn = [("torch", 3), *(("deepspeed", stage) for stage in (1, 2, 3)), ("torch", 3)]
    for engine, zero_stage in in_turn:  # caches that come with the first
        pair.assert_trains(engine=engine, zero_stage=zero_stage)

    found = [
        pair.run(a_request(SPEC, engine=engine, zero_stage=zero_stage))
        for engine, zero_stage in in_turn
    ]

    first, last = found[0], found[-1]
    assert isinstance(first, Measured)
    assert isinstance(last, Measured)
    assert last.losses == first.losses
    assert last.memory.peak_bytes == pytest.approx(first.memory.peak_bytes, abs=8 * MIB)
    assert all(outcome.costs.residual_bytes < 6 * MIB for outcome in found)
    assert pair.call(_left_behind) == [(), ()]


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


@pytest.mark.parametrize(**every_value(zero_stage=(2, 3), where=("forward", "backward")))
def test_when_one_rank_runs_out_the_others_learn_it_at_once(
    pair: Group, zero_stage: int, where: str
) -> None:
    spec = a_spec(model=odd_model("allocates", where=where, rank=1, call=3))
    request = a_request(
        spec,
        engine="deepspeed",
        zero_stage=zero_stage,
        micro_batch=4,
        collective_seconds=10 * CALL_SECONDS,
    )

    first, other = pair.run_on_all(request)

    assert first == other
    assert isinstance(first, OutOfMemory), first
    assert (first.rank, first.phase) == (1, where)
    assert first.wanted_bytes is not None
    assert first.wanted_bytes >= HUGE_BYTES
    after = pair.run(a_request(SPEC, engine="deepspeed", zero_stage=zero_stage))
    assert isinstance(after, Measured)
    assert after.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def _build(worker: Worker, request: TrialRequest) -> None:
    load_engine(request.plan, worker.device)


OFFLOADED = a_request(
    SPEC,
    engine="deepspeed",
    zero_stage=3,
    offload_optimizer="cpu",
    offload_parameters="cpu",
)


def _out_of_date(_: Worker) -> str:
    """Output of a dry run of the environment's ninja for DeepSpeed's Adam."""
    folder = cpp_extension._get_build_directory("cpu_adam", verbose=False)
    ninja = Path(sys.executable).with_name("ninja")
    return subprocess.run(
        [ninja, "-n"], cwd=folder, capture_output=True, check=True
    ).stdout.decode()


@pytest.mark.timeout(BUILD_SECONDS + 60)
@pytest.mark.skipif(missing_for_cpu_adam() is not None, reason=str(missing_for_cpu_adam()))
def test_what_is_compiled_is_known_to_the_environments_ninja(alone: Group) -> None:
    """Another ninja on the machine would recompile in turns with the environment's."""
    alone.call(_build, OFFLOADED, seconds=BUILD_SECONDS)

    assert alone.call(_out_of_date) == ["ninja: no work to do.\n"]


def _load_again(_: Worker) -> None:
    load_cpu_adam()


@pytest.mark.timeout(BUILD_SECONDS + 60)
@pytest.mark.skipif(missing_for_cpu_adam() is not None, reason=str(missing_for_cpu_adam()))
def test_what_is_loaded_waits_for_nobody_who_compiles(alone: Group) -> None:
    """Another environment on the machine may compile for minutes in the middle of a trial."""
    alone.call(_build, OFFLOADED, seconds=BUILD_SECONDS)
    folder = Path(cpp_extension._get_build_directory("cpu_adam", verbose=False))

    with (folder / "plimsoll.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        alone.call(_load_again)


@pytest.mark.thorough
@pytest.mark.skipif(missing_for_cpu_adam() is not None, reason=str(missing_for_cpu_adam()))
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
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=300, check=True)


@pytest.mark.timeout(BUILD_SECONDS + 60)
@pytest.mark.skipif(missing_for_cpu_adam() is not None, reason=str(missing_for_cpu_adam()))
def test_offload_to_the_host_trains_the_same(pair: Group) -> None:
    pair.call(_build, OFFLOADED, seconds=BUILD_SECONDS)
    half = dataclasses.replace(OFFLOADED.plan, zero_stage=2, offload_parameters="none")

    for plan in (OFFLOADED.plan, half):
        outcome = pair.run(dataclasses.replace(OFFLOADED, plan=plan))

        assert isinstance(outcome, Measured), outcome
        assert outcome.losses == pytest.approx(reference_losses(), rel=CPU_ADAM_TOLERANCE)


@pytest.mark.thorough  # building what DeepSpeed reads and writes with takes minutes
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
