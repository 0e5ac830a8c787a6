"""How a process trains, told by its living modules: looked at for one step, then left alone."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from search_spaces.settings.observed_run import ObservedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrappers:
    """The wrapper in the words of a plan. `units` are the modules that it shards by themselves."""

    wrapper: Literal["none", "ddp", "fsdp2", "deepspeed"]
    zero_stage: int = 0
    replicas: int = 1
    offload_parameters: str = "none"
    offload_optimizer: str = "none"
    units: tuple[nn.Module, ...] = ()


def wrappers_of(modules: Iterable[nn.Module]) -> Wrappers:
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
    return Wrappers(wrapper="ddp" if replicated else "none")


def _is_engine(module: nn.Module) -> bool:
    # whoever has an engine has imported DeepSpeed, which nobody else should have to
    engine = sys.modules.get("deepspeed.runtime.engine")
    return engine is not None and isinstance(module, engine.DeepSpeedEngine)


def _of_deepspeed(engine: Any) -> Wrappers:
    def place(section: Any) -> str:
        return "none" if section is None else str(getattr(section.device, "value", section.device))

    return Wrappers(
        wrapper="deepspeed",
        zero_stage=int(engine.zero_optimization_stage()),
        offload_parameters=place(engine.zero_offload_param()),
        offload_optimizer=place(engine.zero_offload_optimizer()),
    )


def _of_fsdp(units: tuple[Any, ...]) -> Wrappers:
    # torch tells these nowhere else: _fully_shard/_fsdp_param_group.py
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    groups = [group for group in groups if group is not None]
    offloaded = any(isinstance(group.offload_policy, CPUOffloadPolicy) for group in groups)
    reshards = any(group.post_forward_mesh_info is not None for group in groups)
    return Wrappers(
        wrapper="fsdp2",
        zero_stage=3 if reshards else 2,
        replicas=getattr(groups[0].mesh_info, "replicate_mesh_size", 1) if groups else 1,
        offload_parameters="cpu" if offloaded else "none",
        units=units,
    )


@dataclass(slots=True)
class ModuleHooks:
    """Hooks on the modules of this process, for the length of a step."""

    in_backward: Callable[[], bool]
    roots: list[nn.Module]
    compiled: list[nn.Module]
    handles: list[RemovableHandle] = field(default_factory=list)
    ran: set[int] = field(default_factory=set)  # whose forward ran, before backward
    again: dict[int, nn.Module] = field(default_factory=dict)  # and those whose ran in backward
    rows: int | None = None
    dtypes: Counter[torch.dtype] = field(default_factory=Counter)

    @classmethod
    def begin(cls, in_backward: Callable[[], bool]) -> Self:
        """Looks on from now; `in_backward` tells whether a call of backward is under way.

        What is compiled is left alone inside: hooks would have it compiled once more.
        """
        roots = list(_roots())
        compiled = [module for root in roots for module in root.modules() if _is_compiled(module)]
        shut = {id(inner) for module in compiled for inner in module.modules()}
        looking = cls(in_backward, roots, compiled)
        for root in roots:
            looking.handles.append(
                root.register_forward_pre_hook(looking._called, with_kwargs=True)
            )
            for module in root.modules():
                if id(module) not in shut:
                    looking._watch(module)
        return looking

    def _watch(self, module: nn.Module) -> None:
        self.handles.append(module.register_forward_pre_hook(self._entered))
        if isinstance(module, nn.Linear):
            self.handles.append(module.register_forward_hook(self._gave))

    def _called(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (*args, *kwargs.values())
        tensors = (value for value in given if isinstance(value, torch.Tensor) and value.dim())
        if self.rows is None and (first := next(tensors, None)) is not None:
            self.rows = len(first)

    def _entered(self, module: nn.Module, _: object) -> None:
        if self.in_backward():
            self.again[id(module)] = module
        else:
            self.ran.add(id(module))

    def _gave(self, _: nn.Module, __: object, output: torch.Tensor) -> None:
        self.dtypes[output.dtype] += 1

    def end(self, optimizer: torch.optim.Optimizer) -> ObservedSettings:
        """What was seen; takes the hooks away."""
        for handle in self.handles:
            handle.remove()
        started = dist.is_available() and dist.is_initialized()
        wrapping = wrappers_of(module for root in self.roots for module in root.modules())
        return ObservedSettings(
            rank=dist.get_rank() if started else int(os.environ.get("RANK", "0")),
            ranks=dist.get_world_size() if started else 1,
            wrapper=wrapping.wrapper,
            zero_stage=wrapping.zero_stage,
            replicas=wrapping.replicas,
            offload_parameters=wrapping.offload_parameters,
            offload_optimizer=wrapping.offload_optimizer,
            wrapped=_counted(wrapping.units),
            recomputed=_counted(self._recomputed()),
            compiled=len(self.compiled),
            rows=self.rows,
            compute=_dtype_name(self.dtypes),
            attention=_attention(self.roots),
            optimizer=_optimizer_words(optimizer),
        )

    def _recomputed(self) -> Iterator[nn.Module]:
        """The outermost modules whose forward ran again, and wrappers inside what is compiled."""
        again = dict(self.again)
        for root in self.roots:
            self._lift(root, again)
        inner = {
            id(part) for module in again.values() for part in module.modules() if part is not module
        }
        yield from (module for name, module in again.items() if name not in inner)
        for module in self.compiled:
            yield from (part for part in module.modules() if isinstance(part, CheckpointWrapper))

    def _lift(self, module: nn.Module, again: dict[int, nn.Module]) -> None:
        """Counts a module as run again if all of its parts were that had run: bottom up.

        Where the forward itself is recomputed, as in transformers' layers, no hook is called.
        """
        parts = list(module.children())
        for part in parts:
            self._lift(part, again)
        ran = [id(part) for part in parts if id(part) in self.ran]
        if ran and id(module) in self.ran and all(part in again for part in ran):
            again[id(module)] = module


def _roots() -> Iterator[nn.Module]:
    """Modules with weights to train that are part of no other one."""
    # by type alone: asking some objects for their class imports or computes things
    alive = [each for each in gc.get_objects() if _is_module(each)]
    inner = {id(child) for module in alive for child in module._modules.values()}
    for module in alive:
        if id(module) not in inner and any(weight.requires_grad for weight in module.parameters()):
            yield module


def _is_module(thing: object) -> bool:
    return issubclass(type(thing), nn.Module) and "_modules" in thing.__dict__


def _is_compiled(module: nn.Module) -> bool:
    compiled = getattr(module, "_compiled_call_impl", None)
    return compiled is not None or isinstance(module, torch._dynamo.OptimizedModule)


def _counted(modules: Iterable[nn.Module]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(_class_name(module) for module in modules).items()))


def _class_name(module: nn.Module) -> str:
    """Its own class, without what wraps it and without the one that FSDP2 makes of it."""
    if isinstance(module, CheckpointWrapper):
        return _class_name(module._checkpoint_wrapped_module)
    name = type(module).__name__
    sharded = name.startswith("FSDP") and len(type(module).__bases__) == 2
    return type(module).__bases__[1].__name__ if sharded else name


def _dtype_name(dtypes: Counter[torch.dtype]) -> str | None:
    most = dtypes.most_common(1)
    return str(most[0][0]).removeprefix("torch.") if most else None


def _attention(roots: Iterable[nn.Module]) -> str | None:
    """What transformers' configuration says, of the outermost module that has one."""
    for root in roots:
        for module in root.modules():
            found = getattr(getattr(module, "config", None), "_attn_implementation", None)
            if isinstance(found, str):
                return found
    return None


def _optimizer_words(optimizer: torch.optim.Optimizer) -> str:
    ways = [way for way in ("fused", "foreach") if optimizer.defaults.get(way)]
    return " ".join([type(optimizer).__name__, *ways])
