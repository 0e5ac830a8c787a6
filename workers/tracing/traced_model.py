"""Models prepared for a trace: without memory, and in a stack one block of each kind."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from search_spaces.costs.footprint import Compute
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import ModelError
from search_spaces.plan import Attention, Plan
from search_spaces.settings.rank_layout import MESH_DIMENSIONS, mesh_shape, rank_coordinates
from search_spaces.specification.schema import SweepSpec
from workers.data.batches import is_causal_lm
from workers.models.built import BuiltModel, batch_source
from workers.models.config import one_sentence
from workers.models.fake_memory import FakeMemory, without_fake_tensor_logs
from workers.models.function import build_fake_function, is_function
from workers.models.load import build
from workers.models.stack import find_stack
from workers.models.stack_trace import NoStackError
from workers.models.stage_placeholders import BlockPlaceholder
from workers.models.user_code import errors_as
from workers.parallel.split_modules import localize
from workers.plain_torch.blocks import tile_mlps
from workers.plain_torch.head_loss import replace_loss
from workers.plain_torch.slices import replace_buffers, replace_weights
from workers.plain_torch.states import cast_inputs
from workers.process_groups import Mesh, clear_mesh_caches

_Settings = dict[tuple[str, str], Any]  # by module and attribute
Splitter = Callable[[BuiltModel], None]


def block_kinds(blocks: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Groups the indices of blocks by kind: the same class, shapes, precision and settings.

    A number that counts the blocks is not a setting. The first block is always a kind of its
    own: its input may have another precision, and may need no gradient.
    """
    settings = [_settings(block) for block in blocks]
    counters = _counters(settings)
    kinds: dict[Any, list[int]] = {}
    for index, block in enumerate(blocks):
        own = {key: value for key, value in settings[index].items() if key not in counters}
        kind = (index == 0, _shapes(block), tuple(sorted(own.items(), key=lambda item: item[0])))
        kinds.setdefault(kind, []).append(index)
    return tuple(map(tuple, kinds.values()))


def _shapes(block: nn.Module) -> tuple[Any, ...]:
    return tuple(
        (name, type(part).__qualname__, key, weight.shape, weight.dtype, weight.requires_grad)
        for name, part in block.named_modules()
        for key, weight in (part._parameters or {"": None}).items()
        if weight is not None
    )


def _settings(block: nn.Module) -> _Settings:
    """Returns plain attributes; fractions (dropout rates, say) only as zero or not."""
    settings: _Settings = {}
    for name, part in block.named_modules():
        settings[name, "class"] = type(part).__qualname__
        for key, value in vars(part).items():
            if isinstance(value, bool | int | str | None):
                settings[name, key] = repr(value)
            elif isinstance(value, float):
                settings[name, key] = repr(bool(value))
    return settings


def _counters(settings: Sequence[Mapping[tuple[str, str], Any]]) -> frozenset[tuple[str, str]]:
    """Returns attributes that are integers and grow by one from block to block."""
    first = settings[0] if settings else {}
    return frozenset(
        key
        for key, value in first.items()
        if value.isdigit()
        and len(settings) > 1
        and all(own.get(key) == str(int(value) + index) for index, own in enumerate(settings))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """A model on the meta device, with only the first block of each kind if `is_stack`.

    `kinds` are indices of blocks in the whole model.
    """

    model: BuiltModel
    kinds: tuple[tuple[int, ...], ...]
    is_stack: bool

    @property
    def present(self) -> tuple[int, ...]:
        """The indices of the traced blocks."""
        depth = len(self.model.blocks)
        return tuple(kind[0] for kind in self.kinds) if self.is_stack else tuple(range(depth))


def traced_model(
    spec: SweepSpec, attention: Attention, mode: FakeMemory, *, whole: bool = False
) -> TracedModel:
    """Builds the model of the spec as the worker does; `whole` keeps all of its blocks.

    Raises:
        ModelError: If the model cannot be found or built.
    """
    model = _build(spec, attention, mode)
    replace_weights(
        model.module, lambda one: nn.Parameter(_on_meta(one), requires_grad=one.requires_grad)
    )
    replace_buffers(model.module, _on_meta)
    kinds = block_kinds(model.blocks)
    if whole or len(kinds) == len(model.blocks):
        return TracedModel(model=model, kinds=kinds, is_stack=False)
    try:
        stack = find_stack(model.module, _input_maker(model, spec))
    except NoStackError:
        return TracedModel(model=model, kinds=kinds, is_stack=False)
    for kind in kinds:
        for index in kind[1:]:
            placeholder = BlockPlaceholder(model.blocks[index], stack.form)
            model.module.set_submodule(stack.blocks[index], placeholder)
    blocks = tuple(model.module.get_submodule(name) for name in stack.blocks)
    return TracedModel(model=replace(model, blocks=blocks), kinds=kinds, is_stack=True)


def in_fake_memory(
    given: BuiltModel,
    key: VariantKey,
    mode: FakeMemory,
    splitter: Splitter | None,
) -> BuiltModel:
    """Returns a trainable copy of a model, computed as `key` says, with weights of `mode`.

    Under "cast", as with sharded weights, the weights and the inputs of blocks are in bf16;
    buffers keep their precision. A `splitter` of None leaves the model whole.
    """
    compute = key.compute
    with without_fake_tensor_logs():
        module, blocks = copy.deepcopy((given.module, given.blocks))
    model = replace(given, module=module, blocks=blocks)
    if splitter is not None:
        splitter(model)
        localize(module)
    casts = compute == "cast"
    with mode:
        replace_weights(module, partial(_in_memory, compute=compute))
        replace_buffers(
            module, lambda one: torch.empty_like(one, device="cpu") if one.is_meta else one
        )
    if casts:
        for part in {module, *blocks}:
            part.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    if key.mlp_tiles > 1:
        tile_mlps(model.blocks, key.mlp_tiles)
    if key.loss != "whole" or key.vocab_multiple > 1:
        shifts, multiple = is_causal_lm(module), key.vocab_multiple
        replace_loss(module, key.loss, shifts=shifts, vocab_multiple=multiple)
    module.train()
    return model


def _build(spec: SweepSpec, attention: Attention, mode: FakeMemory) -> BuiltModel:
    if not is_function(spec.model):
        model = build(spec.model, spec.train, attention=attention)
        mode.keeps_integers = model.batch_maker is not None
        return model

    def build_error(error: BaseException) -> ModelError:
        return ModelError(
            f"{spec.model.title} cannot be built on fake tensors, as a trace needs it:"
            f" {type(error).__name__}: {one_sentence(error)}"
        )

    with errors_as(build_error), without_fake_tensor_logs():
        return build_fake_function(spec.model, spec.train, mode)


def _input_maker(model: BuiltModel, spec: SweepSpec) -> Callable[[], Any] | None:
    if model.batch_maker is None:
        return None
    source = batch_source(model, spec)
    return lambda: source.typical().inputs


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _in_memory(weight: nn.Parameter, *, compute: Compute) -> nn.Parameter:
    dtype = torch.bfloat16 if compute == "cast" and weight.is_floating_point() else weight.dtype
    if compute == "fp32" and dtype == torch.bfloat16 and not weight.requires_grad:
        dtype = torch.float32  # held so beside adapters, by plans that do not compute in fp32
    empty = torch.empty_like(weight, dtype=dtype, device="cpu")
    return nn.Parameter(empty, requires_grad=weight.requires_grad)


@contextmanager
def fake_ranks(plan: Plan) -> Iterator[Mesh]:
    """Makes this process rank 0 of the plan's ranks within the context, without real peers."""
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
        clear_mesh_caches()
