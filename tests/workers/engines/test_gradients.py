"""Averages and norms of gradients over two real ranks, by hand."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from search_spaces.trial import TrialRequest
from tests.workers.launch import Group
from tests.workers.values import CALL_SECONDS, a_plan, a_request
from workers.engines.gradient_average import GradientAverage
from workers.engines.optimizer_step import make_norm
from workers.worker import Worker

MIB_OF_FLOATS = 2**18


def _averaged(worker: Worker, sizes: tuple[int, ...], dtypes: tuple[str, ...]) -> Any:
    """Gradients of a rank after the average, and the elements of each message."""
    mesh = worker.group.acquire(CALL_SECONDS, a_plan())
    rank = mesh.place.data
    weights = [
        nn.Parameter(torch.zeros(size, dtype=getattr(torch, name)))
        for size, name in zip(sizes, dtypes, strict=True)
    ]
    for number, weight in enumerate(weights[:-2]):
        weight.grad = torch.full_like(weight, 10.0 * number + 2 * rank)
    if rank == 0:  # the other rank did not use it
        weights[-2].grad = torch.full_like(weights[-2], 6.0)
    weights[-1].requires_grad = False
    sent: list[int] = []
    all_reduce = dist.all_reduce

    def counted(tensor: torch.Tensor, **options: Any) -> Any:
        sent.append(tensor.numel())
        return all_reduce(tensor, **options)

    dist.all_reduce = counted
    try:
        GradientAverage(weights=weights, bucket_mib=1, group=mesh.data_group).run()
    finally:
        dist.all_reduce = all_reduce
    return [None if each.grad is None else each.grad.unique().tolist() for each in weights], sent


@pytest.mark.parametrize(
    ("sizes", "dtypes", "sent"),
    [
        ((3, 5, 2, 4), ("float32",) * 4, [10]),
        ((MIB_OF_FLOATS - 5, 5, 2, 4), ("float32",) * 4, [MIB_OF_FLOATS, 2]),
        ((2 * MIB_OF_FLOATS, 5, 2, 4), ("float32",) * 4, [2 * MIB_OF_FLOATS, 7]),
        ((3, 5, 2, 4), ("bfloat16", "float32", "float32", "float32"), [3, 7]),
    ],
    ids=["one bucket", "a full bucket", "larger than a bucket", "two types"],
)
def test_gradients_are_means_in_buckets(
    pair: Group, sizes: tuple[int, ...], dtypes: tuple[str, ...], sent: list[int]
) -> None:
    for found, messages in pair.call(_averaged, sizes, dtypes):
        assert found == [[1.0], [11.0], [3.0], None]
        assert messages == sent


def _norm_of_stages(worker: Worker, request: TrialRequest, left_out: bool) -> float:
    """Norm over two stages, which each have their own weight and share a tied one."""
    mesh = worker.group.acquire(CALL_SECONDS, request.plan)
    assert mesh is not None
    own, tied = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    own.grad, tied.grad = torch.full((2,), 1.0 + mesh.place.stage), torch.full((1,), 4.0)
    elsewhere = (tied,) if left_out and mesh.place.stage == 1 else ()
    return make_norm(mesh, worker.device, elsewhere).of([own, tied]).item()


def test_stages_add_up_and_a_tied_weight_counts_once(pair: Group) -> None:
    request = a_request(data=1, pipeline=2)

    own = 2 * 1.0**2 + 2 * 2.0**2
    assert pair.call(_norm_of_stages, request, True) == pytest.approx([(own + 16) ** 0.5] * 2)
    assert pair.call(_norm_of_stages, request, False) == pytest.approx([(own + 32) ** 0.5] * 2)
