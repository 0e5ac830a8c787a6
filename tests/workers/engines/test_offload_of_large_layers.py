"""Offload and prefetch train the same with layers larger than their buffers.

A library's offload was once exact on small models and wrong from 164 MiB a layer on, because it
took a buffer for the next layer before the last one was read. So layers here take more than
256 MiB, and there are two of them.
"""

from typing import Any

import pytest

from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.values import LLAMA, a_request, a_spec

WIDTH, WIDE, MATRICES = 256, 92_000, 3
LAYER_BYTES = 4 * MATRICES * WIDTH * WIDE
CONFIG = LLAMA["config"] | {"hidden_size": WIDTH, "intermediate_size": WIDE}
SPEC = a_spec(
    model={**LLAMA, "config": CONFIG},
    data={"lengths": {8: 1, 16: 1}},
    cluster={"memory_gib": 8.0},
    train={"sequence_length": 16, "learning_rate": 1e-4},
)
ALONE: dict[str, Any] = {"data": 1, "micro_batch": 8}
WITH_DEEPSPEED = {"engine": "deepspeed", "offload_optimizer": "cpu"}
OFFLOADED: dict[str, dict[str, Any]] = {
    "FSDP2": {
        **{"zero_stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
        "prefetch_blocks": 1,
    },
    "ZeRO-2": {"zero_stage": 2, **WITH_DEEPSPEED},
    "ZeRO-3": {"zero_stage": 3, **WITH_DEEPSPEED, "offload_parameters": "cpu"},
    "ZeRO-3, prefetched": {"zero_stage": 3, **WITH_DEEPSPEED, "prefetch_mib": 300},
}


@pytest.mark.thorough
@pytest.mark.alone  # for the memory of the machine
def test_offloaded_layers_of_over_256_mib_train_as_one_rank_that_keeps_them() -> None:
    assert LAYER_BYTES > 256 * 2**20
    expected = _losses(1, {"kept": ALONE})["kept"]
    unchanged = _losses(1, {"kept": ALONE}, learning_rate=1e-12)["kept"]
    losses = _losses(2, OFFLOADED)

    # updates show in the losses
    assert abs(expected[-1] / unchanged[-1] - 1) > 1e-3
    for name, found in losses.items():
        assert found == pytest.approx(expected, rel=1e-5), name


def _losses(
    ranks: int, plans: dict[str, dict[str, Any]], **train: Any
) -> dict[str, tuple[float, ...]]:
    spec = SPEC.model_copy(update={"train": SPEC.train.model_copy(update=train)})
    group, losses = Group(ranks, spec), {}
    for name, knobs in plans.items():
        outcome = group.run(a_request(spec, **knobs))
        assert isinstance(outcome, Measured), (name, outcome)
        losses[name] = outcome.losses
    group.stop()
    return losses
