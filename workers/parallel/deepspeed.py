"""Sharding of weights, gradients and optimizer states by DeepSpeed's ZeRO.

Importing this module imports DeepSpeed: see `deepspeed_features.load_deepspeed`.
"""

import os
from collections.abc import Callable
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.comm import comm
from deepspeed.comm.backend import Backend
from deepspeed.comm.torch import TorchBackend, has_all_reduce_coalesced, has_coalescing_manager
from deepspeed.runtime.zero import parameter_offload, partition_parameters
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from deepspeed.utils import debug, groups
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from search_spaces.settings.deepspeed_config import DeepSpeedSettings
from workers.models.built import BuiltModel
from workers.parallel.apply import wrap_blocks
from workers.process_groups import Mesh

OptimizerMaker = Callable[[nn.Module], torch.optim.Optimizer]
SchedulerMaker = Callable[[torch.optim.Optimizer], LRScheduler]
Engine = Any  # deepspeed.DeepSpeedEngine, which has no types
_LOCAL_RANK = "LOCAL_RANK"  # DeepSpeed reads the index of its CUDA device there


def make_engine(
    model: BuiltModel,
    settings: DeepSpeedSettings,
    device: torch.device,
    optimizer_of: OptimizerMaker,
    scheduler_of: SchedulerMaker | None,
) -> Engine:
    """Applies the plan to the model and makes DeepSpeed's engine; a `DeepSpeedState` must be open.

    Recomputation and compilation come first, as under engine `torch`. DeepSpeed then converts
    the weights, splits them and hooks into the modules. ZeRO-3 splits whole weights, which stay in
    host memory until each rank has its shards on the device.
    """
    wrap_blocks(model.module, model.blocks, settings.blocks)
    module = model.module
    weights_on = torch.device("cpu") if settings.zero_stage == 3 else device
    model.initial.materialise(module, device, weights_on=weights_on)
    module.train()
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=optimizer_of(module),
        lr_scheduler=scheduler_of,
        config=settings.config,
    )
    return engine


class TrialBackend(TorchBackend):  # type: ignore[misc]  # deepspeed has no types
    """DeepSpeed's collectives over one existing group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        # skips TorchBackend.__init__, which joins the default group and compiles an extension
        # for collectives over shared memory
        Backend.__init__(self)
        self.world = group
        self.shm_comm_op = None
        self.has_all_reduce_coalesced = has_all_reduce_coalesced()
        self.has_coalescing_manager = has_coalescing_manager()
        # torch 2.13 renamed both, and warns when the old names are called
        self.all_gather_function = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        self.reduce_scatter_function = getattr(
            dist, "reduce_scatter_single", dist.reduce_scatter_tensor
        )
        self.initialized = True
        self.single_gpu_mode = False
        self.using_mpi = False
        self.name = "torch"

    def is_initialized(self) -> bool:
        return True

    def get_world_group(self) -> dist.ProcessGroup:
        return self.world

    def new_group(self, ranks: Any) -> dist.ProcessGroup:
        assert list(ranks) == list(range(self.get_world_size())), "a group of all ranks"
        return self.world

    def get_rank(self, group: Any = None) -> int:
        return dist.get_rank(group or self.world)

    def get_world_size(self, group: Any = None) -> int:
        return dist.get_world_size(group or self.world)

    def get_backend(self, group: Any = None) -> str:
        return dist.get_backend(group or self.world)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: Any = comm.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        return super().all_reduce(tensor, op, group or self.world, async_op)

    def broadcast(
        self, tensor: torch.Tensor, src: int, group: Any = None, async_op: bool = False
    ) -> Any:
        return super().broadcast(tensor, src, group or self.world, async_op)

    def barrier(self, group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return super().barrier(group or self.world, async_op, device_ids)


class DeepSpeedState:
    """DeepSpeed's global state for one engine; `close` restores what was before."""

    def __init__(self, mesh: Mesh | None, device: torch.device) -> None:
        """Points DeepSpeed to the trial's ranks; a single rank gets its own group."""
        self._owns_group = mesh is None and not dist.is_initialized()
        if self._owns_group:
            backend = "nccl" if device.type == "cuda" else "gloo"
            store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not typed
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        group = dist.group.WORLD if mesh is None else mesh.group
        assert group is not None
        if mesh is not None and mesh.resharded is not None:  # else DeepSpeed would open groups
            groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = mesh.resharded.get_group("together")
        self._linear = torch.nn.functional.linear
        self._local_rank = os.environ.get(_LOCAL_RANK)
        os.environ[_LOCAL_RANK] = str(device.index or 0)
        comm.cdb = TrialBackend(group)

    def close(self) -> None:
        """Clears the state that DeepSpeed keeps in its own and torch's modules, with the group."""
        torch.nn.functional.linear = self._linear  # ZeRO-3 replaces it and never restores it
        groups._release_process_group_references(None)
        comm.cdb = None
        debug.debug_clear_module_and_param_names()
        partition_parameters.shutdown_init_context()
        _clear_module_caches()
        if self._local_rank is None:
            os.environ.pop(_LOCAL_RANK, None)
        else:
            os.environ[_LOCAL_RANK] = self._local_rank
        if self._owns_group:
            dist.destroy_process_group()


def _clear_module_caches() -> None:
    """Empties what references modules of ZeRO-3, and so the engine.

    One is the stack of modules in forward, which DeepSpeed does not empty after a failure. The
    others are `lru_cache` methods of the coordinator, some of them inside another decorator.
    """
    parameter_offload.FWD_MODULE_STACK.clear()
    for member in vars(PartitionedParameterCoordinator).values():
        wrapped = [cell.cell_contents for cell in getattr(member, "__closure__", None) or ()]
        for function in (member, *wrapped):
            if hasattr(function, "cache_clear"):
                function.cache_clear()
