"""Initial values for a module that was built on the meta device, drawn after it is split.

No rank ever holds the whole model. The value of an element follows from the seed, the weight's
original name and the element's position in the whole weight, never from the plan.

A module may hold slices of original weights that no `DTensor` describes (the query's part of a
fused projection, say). The code that cuts them names their origin by `name_source`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from workers.models.frozen_base import quantize_layers
from workers.models.init_recorder import Recipe, fill
from workers.models.stage_placeholders import TensorSlice, whole_slice
from workers.plain_torch.slices import replace_buffers, replace_weights

_WRAPPERS = frozenset(
    {"_checkpoint_wrapped_module", "_orig_mod", "base_layer", "original_module", "modules_to_save"}
)
_SOURCES = "_plimsoll_sources"  # of a module: {name of its parameter: pieces}
_PERTURBED_ELEMENTS = 2**20  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A box of a parameter, and the box of an original weight that has its values."""

    at: tuple[int, ...]  # first index in the parameter
    weight: str  # original name; of the same module unless it has a dot
    box: TensorSlice  # in the original weight


def name_source(part: nn.Module, parameter: str, pieces: tuple[Piece, ...]) -> None:
    """Declares the original weights of a parameter of `part`, before FSDP2 shards it."""
    setattr(part, _SOURCES, {**getattr(part, _SOURCES, {}), parameter: pieces})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Changes of weights as large as a precision's rounding, drawn anew for each `seed`.

    Ranks that hold the same part of a weight change it alike, and so do copies of tied weights.
    """

    roundoff: float  # of the precision, relative to a value
    seed: int

    @torch.no_grad()
    def perturb(self, weight: torch.Tensor) -> None:
        """Multiplies each element in place by 1 plus or minus up to the roundoff."""
        local, _ = _local(weight)
        if not local.is_floating_point() or local.numel() == 0:
            return
        generator = torch.Generator(local.device).manual_seed(self.seed)
        rows = local.reshape(1) if local.dim() == 0 else local
        # some rows at a time, so that a large weight needs no second copy
        for part in rows.split(max(_PERTURBED_ELEMENTS * len(rows) // rows.numel(), 1)):
            draws = torch.rand(part.shape, generator=generator, device=part.device)
            part.mul_(1 + self.roundoff * (2 * draws - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialValues:
    """Values of a model's weights and buffers before the first step.

    `recipes` has one for each tensor built on the meta device, under all of its original names.
    Other tensors have their values already.
    """

    seed: int = 0
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    rounding: Rounding | None = None

    def materialise(
        self, module: nn.Module, device: torch.device, *, weights_on: torch.device | None = None
    ) -> None:
        """Puts a model, or a stage of one, on `device`, in place and with its values.

        Weights on the meta device get memory, on each rank for its own shard, and their values.
        Tied weights stay tied. Call it after tensor parallelism, recomputation, compilation and
        `fully_shard`, and before DDP.

        Args:
            module: Plain, with `DTensor` parameters, or sharded by FSDP2.
            device: Draws the values, and holds buffers and weights. CPU and CUDA draw different
                values; each draws the same under every plan.
            weights_on: Holds the weights in place of `device` if they are offloaded.
        """
        device = torch.empty(0, device=device).device  # with its index
        quantize_layers(
            module, lambda name, weight: self._fill(module, name, weight, device), device
        )
        names = [name for name, tensor in _tensors(module) if tensor.is_meta]
        _allocate(module, device, weights_on or device)
        tensors = dict(_tensors(module))
        with torch.no_grad():
            for name in names:
                self._fill(module, name, tensors[name], device)
            if self.rounding is not None:
                for weight in module.parameters():
                    self.rounding.perturb(weight)

    def _fill(
        self, module: nn.Module, name: str, tensor: torch.Tensor, device: torch.device
    ) -> None:
        owner, _, key = name.rpartition(".")
        local, box = _local(tensor)
        pieces = getattr(module.get_submodule(owner), _SOURCES, {}).get(key)
        if pieces is None:
            recipe = self.recipe(name)
            fill(local, recipe, box, seed=self.seed, device=device)
            return
        for piece in pieces:
            overlap = TensorSlice(starts=piece.at, sizes=piece.box.sizes).meet(box)
            if overlap is None:
                continue
            is_relative = "." not in piece.weight
            recipe = self.recipe(f"{owner}.{piece.weight}" if is_relative else piece.weight)
            source = overlap.moved(piece.at, piece.box.starts)
            target = overlap.moved(box.starts, (0,) * local.dim()).of(local)
            fill(target, recipe, source, seed=self.seed, device=device)

    def recipe(self, name: str) -> Recipe:
        """Returns the recipe of a weight or buffer; its name may contain parts of wrappers."""
        return self.recipes[original_name(name)]


def original_name(name: str) -> str:
    """Returns a parameter's name without the parts that wrappers add.

    Recomputation, compilation and adapters add such parts. A copy that is trained in full begins
    as the original, whose name it has.
    """
    name = name.replace("modules_to_save.default", "modules_to_save")
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _allocate(module: nn.Module, device: torch.device, weights_on: torch.device) -> None:
    """Gives meta tensors memory, tied ones once, and moves the others with their values."""

    def buffer_with_memory(buffer: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(buffer, device=device) if buffer.is_meta else buffer.to(device)

    replace_weights(module, lambda weight: _with_memory(weight, weights_on))
    replace_buffers(module, buffer_with_memory)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # makes it notice the replaced weights
            part._apply(lambda tensor: tensor, recurse=False)  # type: ignore[no-untyped-call]


def _with_memory(weight: nn.Parameter, device: torch.device) -> nn.Parameter:
    if weight.is_meta:
        memory = torch.empty_like(weight, device=device)
        return nn.Parameter(memory, requires_grad=weight.requires_grad)
    if not isinstance(weight, DTensor):
        weight.data = weight.data.to(device)
    return weight


def _local(tensor: torch.Tensor) -> tuple[torch.Tensor, TensorSlice]:
    """Returns this rank's part of a tensor, and the box of that part."""
    if not isinstance(tensor, DTensor):
        return tensor, whole_slice(tuple(tensor.shape))
    local = tensor.to_local()
    sizes, starts = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert tuple(local.shape) == tuple(sizes), (local.shape, sizes)
    return local, TensorSlice(starts=tuple(starts), sizes=tuple(sizes))
