"""FSDP2: bytes of each sharding, weights that stay or come early, and bf16."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group, Groups
from tests.workers.one_step import built
from tests.workers.values import LLAMA, a_request, a_spec
from workers.engines.stopwatch import Stopwatch
from workers.memory.device_runtime import runtime_for
from workers.worker import Worker

FOUR_BLOCKS = a_spec(model=LLAMA | {"config": LLAMA["config"] | {"num_hidden_layers": 4}})


def measured(group: Group, request: TrialRequest) -> Measured:
    outcome = group.run(request)
    assert isinstance(outcome, Measured), outcome
    return outcome


def _kept(worker: Worker, request: TrialRequest) -> tuple[set[float], list[list[int]]]:
    """Shares of blocks' weights on this rank after forward, and the ranks that have the others."""
    ours = built(worker, request)
    loss = ours.module(**ours.batches().batches[0].on(worker.device)).loss
    shares: set[float] = set()
    ranks: list[list[int]] = []
    for part in ours.module.modules():
        if not isinstance(part, FSDPModule) or part is ours.module:
            continue
        group: Any = part._get_fsdp_state()._fsdp_param_group
        gathers = group._all_gather_process_group
        assert any(gathers is own for own in worker.group._groups())  # which a failure aborts
        ranks.append(dist.get_process_group_ranks(gathers))
        for weight in group.fsdp_params:
            kept = weight._sharded_post_forward_param_data.numel()
            shares.add(kept / weight._orig_size.numel())
    loss.backward()
    return shares, ranks


def test_weights_stay_with_so_many_neighbours_until_backward(four: Group) -> None:
    request = a_request(zero_stage=3, data=4, reshard_ranks=2, micro_batch=1)

    for rank, (shares, groups) in enumerate(four.call(_kept, request)):
        assert shares == {1 / 2}
        assert {tuple(group) for group in groups} == {(0, 1) if rank < 2 else (2, 3)}


@pytest.mark.parametrize("zero_stage", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_bf16_is_near_fp32_and_keeps_fp32_weights(pair: Group, zero_stage: int) -> None:
    whole = measured(pair, a_request(zero_stage=zero_stage))
    half = measured(pair, a_request(zero_stage=zero_stage, precision="bf16"))

    assert half.losses != whole.losses
    assert half.losses == pytest.approx(whole.losses, rel=0.05)
    assert half.memory.anatomy.weights == whole.memory.anatomy.weights


def _gathers(worker: Worker, request: TrialRequest) -> dict[str, list[str]]:
    """Takes a step; returns the names of the modules whose weights each module gathers ahead."""
    ours = built(worker, request)
    ours.step()
    sharded = {
        one._get_fsdp_state(): name.removeprefix("model.layers.")
        for name, one in ours.module.named_modules()
        if isinstance(one, FSDPModule)
    }
    ours.training.close()
    return {
        name: [
            " ".join(sharded[other] for other in others)
            for others in (state._states_to_forward_prefetch, state._states_to_backward_prefetch)
        ]
        for state, name in sharded.items()
    }


def test_blocks_are_told_whose_weights_to_gather_ahead(pair: Group) -> None:
    request = a_request(FOUR_BLOCKS, zero_stage=3, prefetch_blocks=2)

    for gathers in pair.call(_gathers, request):
        assert gathers == {  # in forward, in backward; "" is the model around the blocks
            "": ["0 1", "3 2"],
            "0": ["1 2", ""],
            "1": ["2 3", "0"],
            "2": ["3", "1 0"],
            "3": ["", "2 1"],
        }


class _Gathers(TorchDispatchMode):
    """Counts the all-gathers of a rank."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.c10d._allgather_base_.default
        return func(*args, **(kwargs or {}))


def _two_steps(worker: Worker, request: TrialRequest) -> tuple[list[int], bool, list[float]]:
    """Gathers of each step, whether all weights are sharded after the last, and losses."""
    ours = built(worker, request)
    counts, losses = [], []
    for number in range(2):
        batches = ours.batches(number)
        with _Gathers() as gathers:
            watch = Stopwatch(runtime_for(ours.device))
            loss = ours.training.step(batches.batches, batches.targets, watch)
        counts.append(gathers.count)
        losses.append(loss.item())
    sharded = all(isinstance(weight, DTensor) for weight in ours.module.parameters())
    ours.training.close()
    return counts, sharded, losses


@pytest.mark.parametrize(
    ("layout", "sharded_modules"),
    [
        ({}, 5),  # four blocks, and the model around them
        pytest.param({"pipeline": 2, "pipeline_schedule": "1f1b"}, 3, marks=pytest.mark.thorough),
        pytest.param({"pipeline": 2, "pipeline_schedule": "gpipe"}, 3, marks=pytest.mark.thorough),
    ],
    ids=["whole", "1f1b", "gpipe"],
)
def test_each_stage_gathers_weights_as_often_as_it_says(
    groups: Groups, layout: dict[str, Any], sharded_modules: int
) -> None:
    passes = 4
    shape = {"micro_batch": 1, "accumulation": passes, "data": 2, **layout}
    ranks = groups.of(2 * layout.get("pipeline", 1))
    losses = set()
    for knobs, gathers in (
        ({"zero_stage": 2}, 1),
        ({"zero_stage": 3}, 2 * passes),
        ({"zero_stage": 3, "gathered_between_passes": True}, 1 + passes),
    ):
        found = ranks.call(_two_steps, a_request(FOUR_BLOCKS, **shape, **knobs))
        for counts, sharded, _ in found:
            assert (counts, sharded) == ([gathers * sharded_modules] * 2, True)
        losses.add(tuple(tuple(of_rank) for *_, of_rank in found))
    assert len(losses) == 1
