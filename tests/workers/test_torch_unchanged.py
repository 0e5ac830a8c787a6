"""Tests that an engine restores torch's own modules and switches after its trial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.values import a_request
from workers.worker import Worker

PLANS: dict[str, dict[str, Any]] = {
    "ddp in bf16": {"precision": "bf16", "compression": "fp16"},
    "tensor, the sequence too": {"tensor": 2, "data": 1, "sequence_parallel": True},
    "pipeline, selective": {
        "pipeline": 2,
        "data": 1,
        "checkpoint_ratio": 1.0,
        "checkpoint_mode": "selective",
    },
    "fsdp2 in fp16, offloaded": {
        "zero_stage": 3,
        "precision": "fp16",
        "offload_optimizer": "cpu",
        "offload_parameters": "cpu",
    },
    "deepspeed 1 in bf16": {"engine": "deepspeed", "zero_stage": 1, "precision": "bf16"},
    "deepspeed, tensor": {"engine": "deepspeed", "tensor": 2, "data": 1},
    "deepspeed 3": {"engine": "deepspeed", "zero_stage": 3},
}


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("knobs", PLANS.values(), ids=PLANS)
def test_after_a_plan_torch_is_as_before(pair: Group, knobs: dict[str, Any]) -> None:
    before = pair.call(_torch)

    outcome = pair.run(a_request(**knobs))

    assert isinstance(outcome, Measured), outcome
    for earlier, later in zip(before, pair.call(_torch), strict=True):
        changed = [name for name, value in earlier.items() if later.get(name) != value]
        assert not changed  # modules that came with the plan may add names


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
