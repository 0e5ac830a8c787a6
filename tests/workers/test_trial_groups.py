"""Groups of the meshes of consecutive plans: kept where they cost nothing, closed where they do."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from search_spaces.plan import Plan
from tests.workers.launch import Group
from tests.workers.values import CALL_SECONDS, a_plan
from workers.process_groups import TrialGroup
from workers.worker import Worker

SPLIT, WHOLE = a_plan(tensor=2, data=2, micro_batch=1), a_plan(data=4, micro_batch=1)


def _open_groups(worker: Worker, plans: list[Plan], keeps_shapes: bool) -> list[int]:
    """Counts this rank's process groups after each plan; each is used before."""
    group = TrialGroup(worker.ranks, worker.device, keeps_shapes=keeps_shapes)
    counts = []
    for plan in plans:
        mesh = group.acquire(CALL_SECONDS, plan)
        assert mesh is not None
        ones = torch.ones(1)
        dist.all_reduce(ones, group=mesh.devices.get_group("tensor"))
        assert ones.item() == plan.tensor
        dist.all_reduce(ones, group=mesh.data_group)
        assert ones.item() == plan.world_size
        counts.append(len(distributed_c10d._world.pg_map))
    group.abort()
    return counts


@pytest.mark.parametrize("keeps_shapes", [True, False])
def test_a_device_holds_groups_of_the_last_shape_alone(four: Group, keeps_shapes: bool) -> None:
    """NCCL's groups hold memory, which would count in every plan after theirs."""
    plans = [WHOLE, SPLIT, WHOLE, SPLIT, SPLIT]
    for whole, split, whole_again, split_again, same in four.call(
        _open_groups, plans, keeps_shapes
    ):
        assert split > whole
        assert split_again == same == split
        assert whole_again == (split if keeps_shapes else whole)
    four.assert_trains(data=4, micro_batch=1)
