"""This rank among the ranks that train together: its place, and the groups it talks in."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from search_spaces.layout import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The ranks of a trial.

    `devices` has the dimensions of `search_spaces.layout.MESH_DIMENSIONS`; take a part of it by
    name, as in `devices["replicate", "shard"]`. `group` holds all ranks of the trial.
    """

    place: Place
    group: dist.ProcessGroup
    devices: DeviceMesh

    @property
    def data_group(self) -> dist.ProcessGroup:
        """The ranks over which gradients are averaged, unless they are replicas of shards."""
        name = "replicate" if self.devices["shard"].size() == 1 else "shard"
        return self.devices.get_group(name)

    @property
    def is_first_replica(self) -> bool:
        """Whether this rank holds the first copy of what it holds, of all that replicate it."""
        return self.devices["replicate"].get_local_rank() == 0

    def size(self, *names: str) -> int:
        """Ranks along these dimensions together."""
        size = 1
        for name in names:
            size *= self.devices[name].size()
        return size
