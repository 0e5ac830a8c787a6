"""Low-rank adapters for frozen weights, made by peft (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

import difflib
import re
import warnings

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from search_spaces.errors import ModelError, require
from search_spaces.spec.sections import LoraSpec, TrainSpec
from workers.models.config import one_sentence
from workers.models.stack import find_blocks
from workers.models.tensor_plan import is_conv1d

_MOST_SUGGESTIONS = 3


def adapters_of(train: TrainSpec) -> LoraSpec | None:
    """Returns the adapters to train, None if all weights are trained."""
    return train.lora if train.method == "lora" else None


def add_adapters(name: str, module: nn.Module, lora: LoraSpec) -> None:
    """Freezes the weights of model `name`, and adds adapters to its linear layers, in place.

    Adapters have the device and precision of their weights, and draw from the process's own
    random state. Under `torch.device("meta")` they are made there. The name of an adapted
    layer's weight gets the part `base_layer`.

    Raises:
        ModelError: If `lora.target_modules` names something that is not a linear layer, with
            the nearest names; if there is no layer to adapt, or peft refuses one.
        MissingExtraError: If peft is not installed.
    """
    require("peft")
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds

    paths = "|".join(map(re.escape, _target_paths(name, module, lora)))
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # peft declares an int, but a float works too
        target_modules=f"(?:{paths})",
        lora_dropout=0.0,
        bias="none",
    )
    with warnings.catch_warnings():
        # peft recognises GPT-2's Conv1D, whose weight is transposed, by itself, and warns; and
        # tied weights cannot be merged with adapters, which does not concern training
        warnings.simplefilter("ignore", UserWarning)
        try:
            inject_adapter_in_model(config, module)
        except ValueError as error:
            raise ModelError(f"{name} cannot have adapters: {one_sentence(error)}") from error


def trainable_parameters(module: nn.Module) -> int:
    """Returns the number of parameters that training changes."""
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


def _target_paths(name: str, module: nn.Module, lora: LoraSpec) -> tuple[str, ...]:
    """Full names of the layers that get an adapter."""
    linear = [path for path, part in module.named_modules() if _is_linear(part)]
    if lora.target_modules == "all-linear":
        inside = {id(part) for block in find_blocks(module) for part in block.modules()}
        in_blocks = [path for path in linear if id(module.get_submodule(path)) in inside]
        if not in_blocks:
            raise ModelError(f"{name} has no linear layers in repeated blocks for adapters")
        return tuple(in_blocks)
    for target in lora.target_modules:
        if not any(_matches_target(target, path) for path in linear):
            raise ModelError(_unknown_target(name, target, linear))
    return tuple(
        path
        for path in linear
        if any(_matches_target(target, path) for target in lora.target_modules)
    )


def _is_linear(part: nn.Module) -> bool:
    linear = isinstance(part, nn.Linear) or is_conv1d(part)
    # `nn.MultiheadAttention` reads the weight of this one without calling the layer
    return linear and not isinstance(part, NonDynamicallyQuantizableLinear)


def _matches_target(target: str, path: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _unknown_target(name: str, target: str, linear: list[str]) -> str:
    leaves = {path.rpartition(".")[2] for path in linear if not path[-1].isdigit()} or linear
    near = difflib.get_close_matches(
        target.rpartition(".")[2], sorted(leaves), n=_MOST_SUGGESTIONS, cutoff=0.0
    )
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    return f"train.lora.target_modules has {target!r}, which is not a linear layer of {name}{hint}"
