"""Settings of a training process, observed by hooks on its modules for one step."""

import contextlib
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
    CheckpointWrapper,
)
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from search_spaces.settings.observed_run import ObservedSettings
from workers.plain_torch.loss import loss_of


def wrapper_settings(modules: Iterable[nn.Module]) -> dict[str, Any]:
    """Returns the fields of `ObservedSettings` on the wrapper of these modules."""
    units: list[nn.Module] = []
    wrapper = "none"
    for module in modules:
        if _is_engine(module):
            return _of_deepspeed(module)
        if isinstance(module, FSDPModule):
            units.append(module)
        if isinstance(module, DistributedDataParallel):
            wrapper = "ddp"
    return _of_fsdp(tuple(units)) if units else {"wrapper": wrapper}


def _is_engine(module: nn.Module) -> bool:
    # a process with an engine has imported DeepSpeed; no other process should import it
    engine = sys.modules.get("deepspeed.runtime.engine")
    return engine is not None and isinstance(module, engine.DeepSpeedEngine)


def _of_deepspeed(engine: Any) -> dict[str, Any]:
    def place(section: Any) -> str:
        return "none" if section is None else str(getattr(section.device, "value", section.device))

    return {
        "wrapper": "deepspeed",
        "zero_stage": int(engine.zero_optimization_stage()),
        "offload_parameters": place(engine.zero_offload_param()),
        "offload_optimizer": place(engine.zero_offload_optimizer()),
        "clip": engine.gradient_clipping() or None,
    }


def _of_fsdp(units: tuple[Any, ...]) -> dict[str, Any]:
    # private, but the only source: _fully_shard/_fsdp_param_group.py
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    groups = [group for group in groups if group is not None]
    offloaded = any(isinstance(group.offload_policy, CPUOffloadPolicy) for group in groups)
    reshards = any(group.post_forward_mesh_info is not None for group in groups)
    return {
        "wrapper": "fsdp2",
        "zero_stage": 3 if reshards else 2,
        "replicas": getattr(groups[0].mesh_info, "replicate_mesh_size", 1) if groups else 1,
        "offload_parameters": "cpu" if offloaded else "none",
        "wrapped": _counts_by_class(units),
    }


@dataclass(slots=True)
class ModuleHooks:
    """Hooks on the modules of this process for one step."""

    in_backward: Callable[[], bool]
    roots: list[nn.Module]
    compiled: list[nn.Module]
    handles: list[RemovableHandle] = field(default_factory=list)
    ran: set[int] = field(default_factory=set)  # modules whose forward ran outside backward
    again: dict[int, nn.Module] = field(default_factory=dict)  # and in backward
    shape: tuple[int, ...] = ()  # of the first tensor input: batch dimension, tokens
    dtypes: Counter[torch.dtype] = field(default_factory=Counter)
    losses: list[torch.Tensor] = field(default_factory=list)  # that the roots returned
    backward_values: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def begin(cls, in_backward: Callable[[], bool]) -> Self:
        """Registers hooks; `in_backward` returns True while backward runs.

        Compiled modules get no hooks inside, which would trigger a recompilation.
        """
        roots = list(root_modules())
        compiled = [
            module
            for root in roots
            for module in root.modules()
            if getattr(module, "_compiled_call_impl", None) is not None
            or isinstance(module, torch._dynamo.OptimizedModule)
        ]
        inside_compiled = {id(inner) for module in compiled for inner in module.modules()}
        hooks = cls(in_backward, roots, compiled)
        for root in roots:
            hooks.handles.append(root.register_forward_pre_hook(hooks._on_root, with_kwargs=True))
            hooks.handles.append(root.register_forward_hook(hooks._on_root_output))
            for module in root.modules():
                if id(module) not in inside_compiled:
                    hooks._watch(module)
        return hooks

    def _watch(self, module: nn.Module) -> None:
        self.handles.append(module.register_forward_pre_hook(self._on_forward))
        if isinstance(module, nn.Linear):
            self.handles.append(module.register_forward_hook(self._on_linear_output))

    def _on_root(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = (*args, *kwargs.values())
        tensors = (value for value in values if isinstance(value, torch.Tensor) and value.dim())
        if not self.shape and (first := next(tensors, None)) is not None:
            self.shape = tuple(first.shape)

    def _on_root_output(self, _: nn.Module, __: object, output: object) -> None:
        if not self.in_backward():
            with contextlib.suppress(TypeError):
                self.losses.append(loss_of(output).detach())

    def _on_forward(self, module: nn.Module, _: object) -> None:
        if self.in_backward():
            self.again[id(module)] = module
        else:
            self.ran.add(id(module))

    def _on_linear_output(self, _: nn.Module, __: object, output: torch.Tensor) -> None:
        self.dtypes[output.dtype] += 1

    def end(self, optimizer: torch.optim.Optimizer, clip: float | None) -> ObservedSettings:
        """Removes the hooks; returns the settings, with the norm that the script clipped to."""
        for handle in self.handles:
            handle.remove()
        groups = [group for group in optimizer.param_groups if group["params"]]
        common = self.dtypes.most_common(1)
        modes = [mode for mode in ("fused", "foreach") if optimizer.defaults.get(mode)]
        rates = {
            (name, tuple(map(float, rate)) if isinstance(rate, tuple | list) else float(rate))
            for group in groups
            for name, rate in group.items()
            if name in ("momentum", "betas") or (name == "eps" and "betas" in group)
        }
        has_group = dist.is_available() and dist.is_initialized()
        modules = (module for root in self.roots for module in root.modules())
        settings = wrapper_settings(modules)
        if clip is not None:
            settings["clip"] = clip
        return ObservedSettings(
            rank=dist.get_rank() if has_group else int(os.environ.get("RANK", "0")),
            ranks=dist.get_world_size() if has_group else 1,
            **settings,
            recomputed=_counts_by_class(self._recomputed()),
            compiled=len(self.compiled),
            rows=self.shape[0] if self.shape else None,
            columns=self.shape[1] if len(self.shape) > 1 else None,
            compute=str(common[0][0]).removeprefix("torch.") if common else None,
            attention=_attention(self.roots),
            frozen=_frozen(self.roots),
            optimizer=" ".join([type(optimizer).__name__, *modes]),
            decays=tuple(sorted({float(group.get("weight_decay", 0.0)) for group in groups})),
            rates=tuple(sorted(rates)),
            loss_weight=self._loss_weight(),
        )

    def _loss_weight(self) -> float | None:
        """Returns `ObservedSettings.loss_weight`; None if the model does not return its loss."""
        losses = [float(loss) for loss in self.losses]
        if not losses or len(losses) != len(self.backward_values) or 0.0 in losses:
            return None
        weights = zip(self.backward_values, losses, strict=True)
        return sum(float(value) / loss for value, loss in weights)

    def _recomputed(self) -> Iterator[nn.Module]:
        """Yields the outermost recomputed modules, and wrappers inside compiled modules."""
        again = dict(self.again)
        for root in self.roots:
            self._add_parents(root, again)
        inner = {
            id(part) for module in again.values() for part in module.modules() if part is not module
        }
        yield from (module for name, module in again.items() if name not in inner)
        for module in self.compiled:
            yield from (part for part in module.modules() if isinstance(part, CheckpointWrapper))

    def _add_parents(self, module: nn.Module, again: dict[int, nn.Module]) -> None:
        """Adds modules whose children were all recomputed, bottom up.

        If only the forward method is recomputed, as in transformers' layers, the module's own
        hook is not called.
        """
        parts = list(module.children())
        for part in parts:
            self._add_parents(part, again)
        ran = [id(part) for part in parts if id(part) in self.ran]
        if ran and id(module) in self.ran and all(part in again for part in ran):
            again[id(module)] = module


def root_modules() -> Iterator[nn.Module]:
    """Yields the trainable modules of this process that are part of no other module."""
    modules = [each for each in gc.get_objects() if _is_module(each)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    for module in modules:
        if id(module) not in inner and any(weight.requires_grad for weight in module.parameters()):
            yield module


def _is_module(thing: object) -> bool:
    # by type, since reading `__class__` of some lazy objects imports or computes something
    return issubclass(type(thing), nn.Module) and "_modules" in thing.__dict__


def _counts_by_class(modules: Iterable[nn.Module]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(_class_name(module) for module in modules).items()))


def _class_name(module: nn.Module) -> str:
    if isinstance(module, ActivationWrapper):
        return _class_name(module._checkpoint_wrapped_module)
    name = type(module).__name__
    # FSDP2 replaces the class by a subclass of FSDPModule and the original
    sharded = name.startswith("FSDP") and len(type(module).__bases__) == 2
    return type(module).__bases__[1].__name__ if sharded else name


def _frozen(roots: Iterable[nn.Module]) -> tuple[str, ...]:
    frozen = {one.dtype for root in roots for one in root.parameters() if not one.requires_grad}
    return tuple(sorted(str(dtype).removeprefix("torch.") for dtype in frozen))


def _attention(roots: Iterable[nn.Module]) -> str | None:
    """Attention of transformers' configuration, from the outermost module that has one."""
    configs = (getattr(module, "config", None) for root in roots for module in root.modules())
    kinds = (getattr(config, "_attn_implementation", None) for config in configs)
    return next((kind for kind in kinds if isinstance(kind, str)), None)
