"""A model as it is traced: without memory, and with each kind of block once if it is a stack."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map_only

from search_spaces.costs.footprint import Compute
from search_spaces.errors import ModelError
from search_spaces.plan import Attention, Plan
from search_spaces.settings.rank_layout import MESH_DIMENSIONS, mesh_shape, rank_coordinates
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
from workers.parallel.split_modules import localize, replace_weights
from workers.process_groups import Mesh, forget_meshes

_Settings = dict[tuple[str, str], Any]  # by module and attribute
Splitter = Callable[[BuiltModel], None]


def alike(blocks: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Places of blocks by kind: of one class, shapes, precision and settings.

    A number that counts the blocks is no setting. The first block of all is a kind of its own:
    what it is given may be of another precision, and may want no gradient.
    """
    settings = [_settings(block) for block in blocks]
    counts = _counting(settings)
    found: dict[Any, list[int]] = {}
    for place, block in enumerate(blocks):
        told = {key: value for key, value in settings[place].items() if key not in counts}
        kind = (place == 0, _shapes(block), tuple(sorted(told.items(), key=lambda item: item[0])))
        found.setdefault(kind, []).append(place)
    return tuple(map(tuple, found.values()))


def _shapes(block: nn.Module) -> tuple[Any, ...]:
    return tuple(
        (name, type(part).__qualname__, key, weight.shape, weight.dtype, weight.requires_grad)
        for name, part in block.named_modules()
        for key, weight in (part._parameters or {"": None}).items()
        if weight is not None
    )


def _settings(block: nn.Module) -> _Settings:
    """Plain attributes; of fractions, such as chances of dropout, only whether they are 0."""
    found: _Settings = {}
    for name, part in block.named_modules():
        found[name, "class"] = type(part).__qualname__
        for key, value in vars(part).items():
            if isinstance(value, bool | int | str | None):
                found[name, key] = repr(value)
            elif isinstance(value, float):
                found[name, key] = repr(bool(value))
    return found


def _counting(settings: Sequence[Mapping[tuple[str, str], Any]]) -> frozenset[tuple[str, str]]:
    """Attributes that are another whole number in each block, one more from block to block."""
    first = settings[0] if settings else {}
    return frozenset(
        key
        for key, value in first.items()
        if value.isdigit()
        and len(settings) > 1
        and all(told.get(key) == str(int(value) + place) for place, told in enumerate(settings))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
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


def traced_model(
    spec: SweepSpec, attention: Attention, mode: FakeTensorMode, *, whole: bool = False
) -> TracedModel:
    """The model of the spec as the worker builds it; `whole` keeps all of its blocks.

    Raises:
        ModelError: If it cannot be found or built.
    """
    model = _built(spec, attention, mode)
    replace_weights(model.module, _on_meta)
    kinds = alike(model.blocks)
    if whole or len(kinds) == len(model.blocks):
        return TracedModel(model=model, kinds=kinds, is_stack=False)
    try:
        stack = find_stack(model.module, _inputs(model, spec))
    except NoStackError:
        return TracedModel(model=model, kinds=kinds, is_stack=False)
    for kind in kinds:
        for place in kind[1:]:
            stand_in = Passing(model.blocks[place], stack.form)
            model.module.set_submodule(stack.blocks[place], stand_in)
    blocks = tuple(model.module.get_submodule(name) for name in stack.blocks)
    return TracedModel(model=replace(model, blocks=blocks), kinds=kinds, is_stack=True)


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
            place=rank_coordinates(plan, 0),
            group=group,
            devices=init_device_mesh("cpu", mesh_shape(plan), mesh_dim_names=MESH_DIMENSIONS),
        )
    finally:
        dist.destroy_process_group()
        forget_meshes()
