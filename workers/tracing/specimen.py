"""A model as it is traced: without memory, and with each kind of block once if it is a stack."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from search_spaces.errors import ModelError
from search_spaces.footprint import Compute
from search_spaces.plan import Attention
from search_spaces.spec.schema import SweepSpec
from workers.data.batches import batch_source
from workers.models.built import BuiltModel
from workers.models.config import one_sentence
from workers.models.experts import quiet_fakes
from workers.models.function import is_function
from workers.models.load import build, build_fake
from workers.models.stack import find_stack
from workers.models.stack_trace import NoStackError
from workers.models.stage_placeholders import Passing
from workers.models.user_code import any_fault_as
from workers.parallel.slices import localize, replace_weights
from workers.tracing.kinds import alike

Splitter = Callable[[BuiltModel], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A model on the meta device; of each kind of its blocks, the first is there.

    `kinds` are places of blocks in the whole model. Where `is_stack` is false, all blocks are
    there.
    """

    model: BuiltModel
    kinds: tuple[tuple[int, ...], ...]
    is_stack: bool

    @property
    def present(self) -> tuple[int, ...]:
        """Places of the blocks that are traced."""
        depth = len(self.model.blocks)
        return tuple(kind[0] for kind in self.kinds) if self.is_stack else tuple(range(depth))


def specimen(
    spec: SweepSpec, attention: Attention, mode: FakeTensorMode, *, whole: bool = False
) -> Specimen:
    """The model of the spec as the worker builds it; `whole` keeps all of its blocks.

    Raises:
        ModelError: If it cannot be found or built.
    """
    model = _built(spec, attention, mode)
    replace_weights(model.module, _on_meta)
    kinds = alike(model.blocks)
    if whole or len(kinds) == len(model.blocks):
        return Specimen(model=model, kinds=kinds, is_stack=False)
    try:
        stack = find_stack(model.module, _inputs(model, spec))
    except NoStackError:
        return Specimen(model=model, kinds=kinds, is_stack=False)
    for kind in kinds:
        for place in kind[1:]:
            stand_in = Passing(model.blocks[place], stack.form)
            model.module.set_submodule(stack.blocks[place], stand_in)
    blocks = tuple(model.module.get_submodule(name) for name in stack.blocks)
    return Specimen(model=replace(model, blocks=blocks), kinds=kinds, is_stack=True)


def in_fake_memory(
    given: BuiltModel, compute: Compute, mode: FakeTensorMode, splitter: Splitter | None
) -> BuiltModel:
    """A copy of a model that can train: split, then with weights in `mode`, as it computes.

    Sharded weights are computed with in 16 bits, and so is what goes into blocks; buffers stay.
    """
    module, blocks = copy.deepcopy((given.module, given.blocks))
    model = replace(given, module=module, blocks=blocks)
    if splitter is not None:
        splitter(model)
        localize(module)
    short = compute == "cast"
    with mode:
        replace_weights(module, partial(_in_memory, short=short))
        for part in module.modules():
            for key, buffer in part._buffers.items():
                if buffer is not None and buffer.is_meta:
                    part._buffers[key] = torch.empty_like(buffer, device="cpu")
    if short:
        for part in {module, *blocks}:
            part.register_forward_pre_hook(_shorten, with_kwargs=True)
    module.train()
    return model


def _built(spec: SweepSpec, attention: Attention, mode: FakeTensorMode) -> BuiltModel:
    if not is_function(spec.model):
        return build(spec.model, spec.train, attention=attention)

    def unbuilt(error: BaseException) -> ModelError:
        return ModelError(
            f"{spec.model.name} cannot be built without values, as a trace needs it:"
            f" {type(error).__name__}: {one_sentence(error)}"
        )

    with any_fault_as(unbuilt), quiet_fakes():
        return build_fake(spec.model, spec.train, attention=attention, mode=mode)


def _inputs(model: BuiltModel, spec: SweepSpec) -> Callable[[], Any] | None:
    if model.batch_maker is None:
        return None
    source = batch_source(model, spec)
    return lambda: source.typical().inputs


def _on_meta(weight: nn.Parameter) -> nn.Parameter:
    empty = torch.empty_strided(
        weight.size(), weight.stride(), dtype=weight.dtype, device=torch.device("meta")
    )
    return nn.Parameter(empty, requires_grad=weight.requires_grad)


def _in_memory(weight: nn.Parameter, *, short: bool) -> nn.Parameter:
    dtype = torch.bfloat16 if short and weight.is_floating_point() else weight.dtype
    empty = torch.empty_like(weight, dtype=dtype, device="cpu")
    return nn.Parameter(empty, requires_grad=weight.requires_grad)


def _shorten(_: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map_only(torch.Tensor, _short, (args, kwargs))


def _short(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
