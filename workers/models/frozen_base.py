"""Frozen weights beside adapters: how they are held, by a cast or quantized by bitsandbytes."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from search_spaces.errors import ModelError
from search_spaces.specification.sections import QUANTIZED, Base
from workers.models.stack import find_blocks
from workers.plain_torch.slices import replace_weights

_BASE = "_plimsoll_base"  # attribute of a linear layer to quantize once its weight has values
_OUTLIERS = 6.0  # activations above it are computed in 16 bits; transformers' default for int8


def hold_frozen(name: str, module: nn.Module, base: Base) -> None:
    """Casts the frozen weights of model `name` for a base, and marks the layers to quantize.

    Values are quantized later, and from bf16 as checkpoints are: a whole model may not fit.

    Raises:
        ModelError: If the model has no layer to quantize.
    """
    if base != "fp32":
        replace_weights(module, _in_bf16)
    if base not in QUANTIZED:
        return
    parts = (part for block in find_blocks(module) for part in block.modules())
    for part in parts:
        if type(part) is nn.Linear and not part.weight.requires_grad:
            setattr(part, _BASE, base)
    if not quantized_weights(module):
        raise ModelError(
            f"{name} has no `nn.Linear` in repeated blocks, which bitsandbytes could quantize:"
            f" train.lora.base must be bf16 or fp32, but is {base}"
        )


def _in_bf16(weight: nn.Parameter) -> nn.Parameter:
    if weight.requires_grad or weight.dtype != torch.float32:
        return weight
    return nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False)


def quantized_weights(module: nn.Module) -> dict[int, Base]:
    """Returns the base of each weight that is to be quantized, by the weight's identity."""
    return {id(layer.weight): base for _, layer, base in _marked(module)}


def _marked(module: nn.Module) -> Iterator[tuple[str, Any, Base]]:
    for path, part in module.named_modules(remove_duplicate=False):
        if (base := getattr(part, _BASE, None)) is not None:
            yield path, part, base


def parameter_count(weight: nn.Parameter) -> int:
    """Returns the number of parameters in a weight, which NF4 packs in pairs."""
    state = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else int(state.shape.numel())


def quantize_layers(
    module: nn.Module, fill: Callable[[str, torch.Tensor], None], device: torch.device
) -> None:
    """Replaces the marked layers by those of bitsandbytes on `device`, one by one, in place.

    `fill` puts the values of a weight that was on the meta device, by its path, into a tensor.
    """
    replaced: dict[int, nn.Module] = {}
    for path, layer, base in tuple(_marked(module)):
        if id(layer) not in replaced:
            weight = layer.weight.detach()
            if weight.is_meta:
                weight = torch.empty_like(weight, device=device)
                fill(f"{path}.weight", weight)
            replaced[id(layer)] = _quantized(layer, weight.to(device), base)
        module.set_submodule(path, replaced[id(layer)])


def _quantized(layer: nn.Linear, weight: torch.Tensor, base: Base) -> nn.Module:
    """Makes bitsandbytes' layer with a weight's values; the scales of NF4 are quantized too.

    Source:
        Dettmers et al. 2023, arXiv:2305.14314, section 3.
    """
    from bitsandbytes import functional  # takes seconds
    from bitsandbytes import nn as layers

    sizes: Any = {"input_features": layer.in_features, "output_features": layer.out_features}
    sizes |= {"bias": False, "device": torch.device("meta")}
    if base == "nf4":
        held = layers.Linear4bit(**sizes, quant_type="nf4")
        packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
        held.weight = layers.Params4bit(
            packed, quant_state=state, quant_type="nf4", bnb_quantized=True, module=held
        )
        held.quant_state = state
        # an evaluation would repack the weights for itself, in a form that has no gradient
        held.support_avx512bf16_for_cpu = False
    else:
        held = layers.Linear8bitLt(**sizes, has_fp16_weights=False, threshold=_OUTLIERS)
        packed, scales, _ = functional.int8_vectorwise_quant(weight.to(torch.float16))
        held.weight = layers.Int8Params(packed, requires_grad=False, CB=packed, SCB=scales)
    held.bias = layer.bias
    held.register_forward_pre_hook(_prepare)
    return cast(nn.Module, held)


def _prepare(layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """Has a layer of bitsandbytes compute as autocast says, which does not know it.

    Before the first pass, int8 is also where `Module.to` may have moved the weight alone.
    """
    weight, kind = layer.weight, inputs[0].device.type
    if getattr(weight, "CB", None) is not None:
        weight.CB, weight.SCB = weight.data, weight.SCB.to(weight.device)
    if torch.is_autocast_enabled(kind):
        layer.compute_dtype, layer.compute_type_is_set = torch.get_autocast_dtype(kind), True
