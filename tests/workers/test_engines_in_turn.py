"""Tests that a trial leaves nothing behind for the next one in a warm worker group.

Torch has its own modules and switches again, and the reference plan its losses and memory.

Engine `deepspeed` has its own tests in engines/test_deepspeed. `make bench` measures the effect
on speed.
"""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from orchestrator.core.failures import failure_decision
from search_spaces.trial import Measured, OutOfMemory
from tests.workers.launch import Group, Groups
from tests.workers.values import LLAMA, a_request, a_spec
from workers.worker import Worker

pytestmark = pytest.mark.thorough

SPEC = a_spec(model=LLAMA | {"config": LLAMA["config"] | {"num_hidden_layers": 4}})
LARGE = a_spec(data={"lengths": {256: 1}}, train={"global_batch": 256, "sequence_length": 256})
ODDS_AND_ENDS_BYTES = 64 * 2**10  # a rank's shard of the model takes 360 KiB
# Of the allocator, over all plans. Ranks differ by 20 MiB in what libraries hold, and which of them
# is the fullest, whose memory is told, changes from run to run.
CREEP_BYTES = 40 * 2**20
PLANS: dict[str, dict[str, Any]] = {
    "fsdp2, selective, on the host": {
        "zero_stage": 3,
        "checkpoint_ratio": 1.0,
        "checkpoint_mode": "selective",
        "checkpoint_offload": True,
    },
    "fsdp2 offloaded": {"zero_stage": 2, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
    "tensor": {"tensor": 2, "data": 1},
    "sequence": {"tensor": 2, "data": 1, "sequence_parallel": True, "attention": "eager"},
    "pipeline": {"pipeline": 2, "data": 1},
    "interleaved": {"pipeline": 2, "data": 1, "pipeline_schedule": "interleaved"},
    "fsdp2 in fp16": {"zero_stage": 3, "precision": "fp16"},
    "bf16": {"precision": "bf16"},
    "deepspeed in bf16": {"engine": "deepspeed", "zero_stage": 2, "precision": "bf16"},
    "deepspeed 3": {"engine": "deepspeed", "zero_stage": 3},
}


def reference(group: Group) -> Measured:
    """Runs the reference plan, which comes between all others."""
    outcome = group.run(a_request(SPEC))
    assert isinstance(outcome, Measured), outcome
    assert failure_decision(outcome).replace is None
    return outcome


@pytest.fixture(scope="module")
def first(groups: Groups) -> Measured:
    """Outcome of the reference after each plan ran once, which loads libraries that stay."""
    group = groups.of(2)
    for knobs in PLANS.values():
        group.run(a_request(SPEC, **knobs))
    return reference(group)


def _tensor_bytes(_: Worker) -> int:
    """Bytes of all tensors in this process, but for the compiler's fake ones, which have none."""
    gc.collect()
    alive = (
        found
        for found in gc.get_objects()
        if issubclass(type(found), torch.Tensor) and not issubclass(type(found), FakeTensor)
    )
    return sum(tensor.numel() * tensor.element_size() for tensor in alive)


def _torch(_: Worker) -> dict[str, object]:
    """Address of each function of torch, value of each switch."""
    places = (torch, nn, nn.functional, nn.init, torch.utils.checkpoint, torch.autograd, dist)
    kinds = (
        nn.Module,
        *nn.Module.__subclasses__(),
        nn.Parameter,
        torch.Tensor,
        torch.autograd.Function,
    )
    return dict(_functions(places + kinds)) | {
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "gradients": torch.is_grad_enabled(),
        "denormals": (torch.tensor(1e-40) * 1).item() > 0,
        "hooks": [
            len(value)
            for name, value in vars(nn.modules.module).items()
            if name.startswith("_global_") and isinstance(value, dict)
        ],
    }


def _functions(places: tuple[Any, ...]) -> Iterator[tuple[str, object]]:
    for place in places:
        where = f"{getattr(place, '__module__', '')}.{place.__name__}"
        for name, value in vars(place).items():
            if callable(value) or issubclass(type(value), classmethod | staticmethod):
                yield f"{where}.{name}", id(value)


def assert_as_before(group: Group, first: Measured) -> Measured:
    assert max(group.call(_tensor_bytes)) < ODDS_AND_ENDS_BYTES
    again = reference(group)
    assert again.losses == first.losses
    return again


@pytest.mark.parametrize("knobs", PLANS.values(), ids=PLANS)
def test_after_any_plan_the_reference_is_as_before(
    pair: Group, first: Measured, knobs: dict[str, Any]
) -> None:
    before = pair.call(_torch)

    outcome = pair.run(a_request(SPEC, **knobs))

    assert isinstance(outcome, Measured), outcome
    assert failure_decision(outcome).replace is None
    for earlier, later in zip(before, pair.call(_torch), strict=True):
        assert not [name for name, value in earlier.items() if later.get(name) != value]
    again = assert_as_before(pair, first).memory
    assert again.anatomy.outside - first.memory.anatomy.outside < CREEP_BYTES
    assert again.peak_bytes - first.memory.peak_bytes < CREEP_BYTES


@pytest.mark.parametrize(
    "knobs",
    [{"data": 2}, {"tensor": 2, "data": 1}, {"engine": "deepspeed", "zero_stage": 3, "data": 2}],
    ids=["ddp", "tensor", "deepspeed"],
)
def test_so_it_is_after_one_that_ran_out_of_memory(
    pair: Group, first: Measured, knobs: dict[str, Any]
) -> None:
    micro_batch = 256 // knobs["data"]

    outcome = pair.run(a_request(LARGE, **knobs, micro_batch=micro_batch, accumulation=1))

    assert isinstance(outcome, OutOfMemory), outcome
    assert failure_decision(outcome).replace is None
    assert_as_before(pair, first)
