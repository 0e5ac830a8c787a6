"""Low-rank adapters beside frozen weights, through peft (Hu et al. 2021, arXiv:2106.09685)."""

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

_NAMED = 3  # of the nearest modules in a sentence


def adapters_of(train: TrainSpec) -> LoraSpec | None:
    """The adapters that are trained, None where all weights are."""
    return train.lora if train.method == "lora" else None


def add_adapters(name: str, module: nn.Module, lora: LoraSpec) -> None:
    """Freezes the weights of model `name`, and puts adapters beside linear layers, in place.

    The adapters are made where the weights are, in the same precision, by the process's own
    draws; or on the meta device, where that is the default. The weight of an adapted layer gets
    `base_layer` into its name.

    Raises:
        ModelError: If `lora.target_modules` names something that is no linear layer, naming the
            nearest that are; if there is none to adapt, or peft refuses one.
        MissingExtraError: If peft is not installed.
    """
    require("peft")
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds

    chosen = _chosen(name, module, lora)
    exactly = "|".join(map(re.escape, chosen))
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # a scale as good as a whole number
        target_modules=f"(?:{exactly})",
        lora_dropout=0.0,
        bias="none",
    )
    with warnings.catch_warnings():
        # GPT-2's Conv1D, whose weight lies the other way round, is told from the module itself;
        # that tied weights cannot be merged with adapters is no matter of training
        warnings.simplefilter("ignore", UserWarning)
        try:
            inject_adapter_in_model(config, module)
        except ValueError as error:
            raise ModelError(f"{name} cannot have adapters: {one_sentence(error)}") from error


def trainable_parameters(module: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


def _chosen(name: str, module: nn.Module, lora: LoraSpec) -> tuple[str, ...]:
    """Full names of the layers that get an adapter."""
    linear = [path for path, part in module.named_modules() if _is_linear(part)]
    if lora.target_modules == "all-linear":
        inside = {id(part) for block in find_blocks(module) for part in block.modules()}
        chosen = [path for path in linear if id(module.get_submodule(path)) in inside]
        if not chosen:
            raise ModelError(f"{name} has no linear layers in repeated blocks for adapters")
        return tuple(chosen)
    for target in lora.target_modules:
        if not any(_names(target, path) for path in linear):
            raise ModelError(_unknown(name, target, linear))
    return tuple(
        path for path in linear if any(_names(target, path) for target in lora.target_modules)
    )


def _is_linear(part: nn.Module) -> bool:
    """Whether it is called as a linear layer: that in `nn.MultiheadAttention` is not."""
    linear = isinstance(part, nn.Linear) or is_conv1d(part)
    return linear and not isinstance(part, NonDynamicallyQuantizableLinear)


def _names(target: str, path: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _unknown(name: str, target: str, linear: list[str]) -> str:
    known = sorted({path.rpartition(".")[2] for path in linear if not path[-1].isdigit()} or linear)
    near = difflib.get_close_matches(target.rpartition(".")[2], known, n=_NAMED, cutoff=0.0)
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    return f"train.lora.target_modules has {target!r}, which is no linear layer of {name}{hint}"
