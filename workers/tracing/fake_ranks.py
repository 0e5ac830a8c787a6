"""Ranks that are not there: their collectives have shapes and no peers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from search_spaces.layout import MESH_DIMENSIONS, mesh_shape, place_of
from search_spaces.plan import Plan
from workers.process_groups import Mesh, forget_meshes


@contextmanager
def fake_ranks(plan: Plan) -> Iterator[Mesh]:
    """This process as rank 0 of the plan's ranks; nothing of them stays behind.

    Raises:
        RuntimeError: If this process is one of a group already.
    """
    if dist.is_initialized():
        raise RuntimeError("ranks cannot be imagined in a process that has some")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=plan.world_size)
    try:
        group = dist.group.WORLD
        assert group is not None
        yield Mesh(
            place=place_of(plan, 0),
            group=group,
            devices=init_device_mesh("cpu", mesh_shape(plan), mesh_dim_names=MESH_DIMENSIONS),
        )
    finally:
        dist.destroy_process_group()
        forget_meshes()
