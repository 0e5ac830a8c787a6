"""What shards or replicates a model, told by the wrappers among its modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """The wrapper in the words of a plan. `units` are the modules that it shards by themselves."""

    wrapper: Literal["none", "ddp", "fsdp2", "deepspeed"]
    zero_stage: int = 0
    replicas: int = 1
    offload_parameters: str = "none"
    offload_optimizer: str = "none"
    units: tuple[nn.Module, ...] = ()


def wrapping_of(modules: Iterable[nn.Module]) -> Wrapping:
    """What is around these modules, each of which is looked at."""
    units: list[nn.Module] = []
    replicated = False
    for module in modules:
        if _is_engine(module):
            return _of_deepspeed(module)
        if isinstance(module, FSDPModule):
            units.append(module)
        replicated |= isinstance(module, DistributedDataParallel)
    if units:
        return _of_fsdp(tuple(units))
    return Wrapping(wrapper="ddp" if replicated else "none")


def _is_engine(module: nn.Module) -> bool:
    # whoever has an engine has imported DeepSpeed, which nobody else should have to
    engine = sys.modules.get("deepspeed.runtime.engine")
    return engine is not None and isinstance(module, engine.DeepSpeedEngine)


def _of_deepspeed(engine: Any) -> Wrapping:
    def place(section: Any) -> str:
        return "none" if section is None else str(getattr(section.device, "value", section.device))

    return Wrapping(
        wrapper="deepspeed",
        zero_stage=int(engine.zero_optimization_stage()),
        offload_parameters=place(engine.zero_offload_param()),
        offload_optimizer=place(engine.zero_offload_optimizer()),
    )


def _of_fsdp(units: tuple[Any, ...]) -> Wrapping:
    # torch tells these nowhere else: _fully_shard/_fsdp_param_group.py
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    groups = [group for group in groups if group is not None]
    offloaded = any(isinstance(group.offload_policy, CPUOffloadPolicy) for group in groups)
    reshards = any(group.post_forward_mesh_info is not None for group in groups)
    return Wrapping(
        wrapper="fsdp2",
        zero_stage=3 if reshards else 2,
        replicas=getattr(groups[0].mesh_info, "replicate_mesh_size", 1) if groups else 1,
        offload_parameters="cpu" if offloaded else "none",
        units=units,
    )
