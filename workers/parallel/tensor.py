"""Tensor parallelism: blocks split over tensor ranks, optionally with sequence parallelism.

A split weight becomes a DTensor over the mesh's dimension "tensor", with one placement
`Shard(dim)` and an even split. All other weights stay plain tensors, equal on every tensor rank,
and so do their gradients. Names of weights stay. It works on the meta device too: each DTensor
then has a meta slice, which is filled later with its slice of the whole values.

Some projections are packed (GPT-2's query, key and value). Each rank then has its share of each
part, side by side, and the DTensor is the whole weight in another order. `split_order` makes this
order; `deferred_init.name_source` records the source of each piece. For all other weights both do
nothing.

DistributedDataParallel does not support DTensors: see `split_modules.localize`.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from search_spaces.errors import ModelError
from search_spaces.settings.render import TorchSettings
from workers.models.built import BuiltModel
from workers.models.deferred_init import Piece, name_source
from workers.models.stage_placeholders import TensorSlice
from workers.models.tensor_plan import (
    COLUMN_STYLES,
    PARTS,
    Style,
    TensorPlan,
    local_counts,
    projection_sizes,
    tensor_plan,
)
from workers.parallel.collectives import TensorRanks, gathered_alike, sliced
from workers.parallel.draws import TokenDraws
from workers.parallel.split_modules import (
    ColumnProjection,
    Entrance,
    HeadEmbedding,
    RowProjection,
    VocabularyEmbedding,
    enter,
    sum_gradients,
)
from workers.plain_torch.slices import replace_weights
from workers.process_groups import Mesh

_SEQUENCE = 1  # the dimension of tokens in (samples, tokens, features)
_STATES = ("hidden_states", "key_value_states", "encoder_hidden_states")  # inputs of a region


def split_sequence(
    module: nn.Module, blocks: tuple[nn.Module, ...], plan: TensorPlan, ranks: TensorRanks
) -> None:
    """Slices the sequence before the first block and gathers it after the last, in place.

    Weights that work on a slice of tokens, such as norms, get a partial gradient on each rank,
    which backward then sums. Dropout in between differs by rank, as tokens and heads do.
    """
    draws = TokenDraws(ranks.rank)
    names = {id(part): name for name, part in module.named_modules()}
    covered = {name for name, _ in plan.splits} | set(plan.summed)
    for block in blocks:
        for part in block.modules():
            if part._parameters and names[id(part)] not in covered:
                sum_gradients(part, ranks)

    def cut(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        _refuse_uneven(states.shape[_SEQUENCE], ranks)
        draws.enter(states.device)
        own = sliced(states, ranks, _SEQUENCE)
        return ((own, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": own})

    def gather(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        states = output if isinstance(output, torch.Tensor) else output[0]
        draws.leave(states.device)
        whole = gathered_alike(states, ranks, _SEQUENCE)
        return whole if isinstance(output, torch.Tensor) else (whole, *output[1:])

    blocks[0].register_forward_pre_hook(cut, with_kwargs=True)
    blocks[-1].register_forward_hook(gather)


def _refuse_uneven(tokens: int, ranks: TensorRanks) -> None:
    # Plimsoll pads its own rows; collectives of unequal parts would abort the processes
    if tokens % ranks.size:
        raise ModelError(
            f"sequence_parallel splits rows over {ranks.size} tensor ranks, but the batch maker"
            f" returned rows of {tokens} tokens"
        )


def split_blocks(model: BuiltModel, settings: TorchSettings, mesh: Mesh) -> None:
    """Splits the projections of the model over the tensor ranks, in place.

    Raises:
        CannotSplitError: If the model has no tensor plan; rules refuse such plans earlier.
    """
    module, ranks = model.module, TensorRanks.of(mesh)
    plan = tensor_plan(module, dict(model.tensor_plan))
    tokens = settings.sequence_parallel
    for name in plan.regions:
        _open_region(module.get_submodule(name), ranks, tokens=tokens)
    if tokens:
        split_sequence(module, model.blocks, plan, ranks)
    for name in plan.summed:
        sum_gradients(module.get_submodule(name), ranks)
    for part in module.modules():
        for count in local_counts(type(part)):
            setattr(part, count, getattr(part, count) // ranks.size)
    _split_modules(module, plan, mesh.devices["tensor"], ranks, tokens=tokens)


def split_order(owner: nn.Module, whole: torch.Tensor) -> torch.Tensor:
    """Returns the whole values of a weight of `owner`, in the order in which ranks split them."""
    parts, ranks = _packing(owner)
    if parts == 1 or ranks == 1:
        return whole
    dim = _output_dim(owner, whole.dim())
    pieces: torch.Tensor = whole.unflatten(dim, (parts, ranks, -1))
    return pieces.transpose(dim, dim + 1).flatten(dim, dim + 2)


def _split_modules(
    module: nn.Module, plan: TensorPlan, mesh: DeviceMesh, ranks: TensorRanks, *, tokens: bool
) -> None:
    slices: dict[int, nn.Parameter] = {}
    replaced: dict[int, nn.Module] = {}
    for name, style in (*plan.splits, *plan.vocabulary):
        whole = module.get_submodule(name)
        if (name, style) in plan.vocabulary and whole.get_parameter("weight").shape[0] % ranks.size:
            continue  # rows do not split evenly, nor do those of tied weights
        in_region = any(name.startswith(f"{region}.") for region in plan.regions)
        in_block = (name, style) in plan.splits
        entrance: Entrance = "ready" if in_region else "tokens" if tokens and in_block else "whole"
        replaced[id(whole)] = _split_module(whole, style, ranks, entrance, tokens=tokens)
        parts = PARTS.get(style, 1)
        replaced[id(whole)].packing = (parts, ranks.size)  # type: ignore[assignment]
        for key, weight in whole._parameters.items():
            dim = _split_dim(whole, key, style)
            if weight is not None and dim is not None and id(weight) not in slices:
                _name_pieces(replaced[id(whole)], key, tuple(weight.shape))
                values = split_order(replaced[id(whole)], weight.detach())
                slices[id(weight)] = _slice(values, dim, mesh, ranks, weight.requires_grad)
    for part in list(module.modules()):
        for child, old in list(part._modules.items()):
            if id(old) in replaced:
                setattr(part, child, replaced[id(old)])
    replace_weights(module, lambda weight: slices.get(id(weight), weight))


def _split_module(
    whole: nn.Module, style: Style, ranks: TensorRanks, entrance: Entrance, *, tokens: bool
) -> nn.Module:
    if style in COLUMN_STYLES:
        gathers = style == "colwise_gather_output"
        return ColumnProjection(whole, ranks, entrance=entrance, gathers=gathers)
    if isinstance(whole, nn.Embedding):
        return HeadEmbedding(whole) if style == "heads" else VocabularyEmbedding(whole, ranks)
    return RowProjection(whole, ranks, cuts=style == "rowwise_split_input", tokens=tokens)


def _split_dim(whole: nn.Module, key: str, style: Style) -> int | None:
    """Dimension along which a weight is split; None if each rank has the whole weight."""
    if style == "heads":
        return 1
    if projection_sizes(whole) is None:
        return 0  # the rows of a vocabulary
    is_column = style in COLUMN_STYLES
    if key == "bias":
        return 0 if is_column else None
    return int(is_column != isinstance(whole, nn.Linear))


def _slice(
    whole: torch.Tensor, dim: int, mesh: DeviceMesh, ranks: TensorRanks, trains: bool
) -> nn.Parameter:
    local = ranks.slice(whole, dim).clone()  # a view would keep the whole alive
    split = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False)
    return nn.Parameter(split, requires_grad=trains)


def _packing(owner: nn.Module) -> tuple[int, int]:
    return getattr(owner, "packing", (1, 1))


def _name_pieces(owner: nn.Module, key: str, shape: tuple[int, ...]) -> None:
    """Records the place in the original weight of each piece of a packed one."""
    parts, size = _packing(owner)
    if parts == 1:
        return
    dim = _output_dim(owner, len(shape))
    width = shape[dim] // (parts * size)
    sizes = (*shape[:dim], width, *shape[dim + 1 :])

    def start(index: int) -> tuple[int, ...]:
        return tuple(index * width if axis == dim else 0 for axis in range(len(shape)))

    name_source(
        owner,
        key,
        tuple(
            Piece(
                at=start(rank * parts + part),
                weight=key,
                box=TensorSlice(starts=start(part * size + rank), sizes=sizes),
            )
            for rank in range(size)
            for part in range(parts)
        ),
    )


def _output_dim(owner: nn.Module, dims: int) -> int:
    return dims - 1 if getattr(owner, "transposed", False) else 0


def _open_region(region: nn.Module, ranks: TensorRanks, *, tokens: bool) -> None:
    entrance: Entrance = "tokens" if tokens else "whole"

    def hook(
        _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        first = tuple(
            enter(value, entrance, ranks) if isinstance(value, torch.Tensor) else value
            for value in args[:1]
        )
        named = {
            name: enter(value, entrance, ranks)
            for name, value in kwargs.items()
            if name in _STATES and isinstance(value, torch.Tensor)
        }
        return (*first, *args[1:]), kwargs | named

    region.register_forward_pre_hook(hook, with_kwargs=True)
