"""Low-rank adapters for frozen weights, made by peft (Hu et al. 2021, arXiv:2106.09685)."""

import difflib
import inspect
import re
import warnings

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from search_spaces.errors import ModelError, require
from search_spaces.specification.sections import Base, LoraSpec, TrainSpec
from workers.models.config import one_sentence
from workers.models.frozen_base import hold_frozen
from workers.models.stack import find_blocks
from workers.models.tensor_plan import is_conv1d

_MOST_SUGGESTIONS = 3


def adapters_of(train: TrainSpec, name: str = "", stored: Base | None = None) -> LoraSpec | None:
    """Returns the adapters to train, with how frozen weights are held; None without adapters.

    Args:
        train: Says what is trained.
        name: Of the model.
        stored: What the model's weights are quantized to; None if they are not.

    Raises:
        ModelError: If a quantized model would be trained otherwise than as it is.
    """
    lora = train.lora
    if stored and (train.method == "full" or lora.base not in (None, stored)):
        raise ModelError(
            f"{name} is quantized to {stored}, which can only be trained with train.method lora and"
            f" train.lora.base {stored}: set them, or name the folder of the unquantized model"
        )
    if train.method == "full":
        return None
    unset: Base = "fp32" if train.precision == "fp32" else "bf16"
    return lora.model_copy(update={"base": stored or lora.base or unset})


def add_adapters(name: str, module: nn.Module, lora: LoraSpec) -> None:
    """Freezes the weights of model `name`, held as `lora.base`, and adds adapters, in place.

    Adapters have the device and precision of their weights before those are held otherwise, and
    draw from the process's own random state. Under `torch.device("meta")` they are made there.
    The name of an adapted layer's weight gets the part `base_layer`.

    Raises:
        ModelError: If `lora.target_modules` or `lora.modules_to_save` name something that the
            model lacks or that cannot be adapted, with the nearest names; if there is no layer to
            adapt or to quantize, or peft refuses one.
        MissingExtraError: If peft is not installed.
    """
    require("peft")
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds

    paths = "|".join(map(re.escape, _target_paths(name, module, lora)))
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # peft declares an int, but a float works too
        target_modules=f"(?:{paths})",
        modules_to_save=list(lora.modules_to_save) or None,
        lora_dropout=0.0,
        bias="none",
    )
    with warnings.catch_warnings():
        # peft recognises GPT-2's Conv1D, whose weight is transposed, by itself, and warns; and
        # tied weights cannot be merged with adapters, which does not concern training
        warnings.simplefilter("ignore", UserWarning)
        try:
            inject_adapter_in_model(config, module)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{name} cannot have adapters: {one_sentence(error)}") from error
    hold_frozen(name, module, lora.base or "fp32")


def trainable_parameters(module: nn.Module) -> int:
    """Returns the number of parameters that training changes."""
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad)


def _target_paths(name: str, module: nn.Module, lora: LoraSpec) -> tuple[str, ...]:
    """Full names of the layers that get an adapter."""
    saved = _saved_paths(name, module, lora)
    parts = dict(module.named_modules())
    linear = [path for path, part in parts.items() if _is_linear(part)]
    if lora.target_modules == "all-linear":
        inside = {id(part) for block in find_blocks(module) for part in block.modules()}
        chosen = [path for path in linear if id(parts[path]) in inside]
        if not chosen:
            raise ModelError(f"{name} has no linear layers in repeated blocks for adapters")
    else:
        linear += [path for path, part in parts.items() if _is_embedding(part)]
        for target in lora.target_modules:
            if not any(_matches_target(target, path) for path in linear):
                what = f"not a linear layer or embedding of {name}"
                raise ModelError(_unknown("target_modules", target, what, linear))
        targets = lora.target_modules
        chosen = [path for path in linear if any(_matches_target(one, path) for one in targets)]
    inside_saved = tuple(f"{path}." for path in saved)
    return tuple(path for path in chosen if not f"{path}.".startswith(inside_saved))


def _saved_paths(name: str, module: nn.Module, lora: LoraSpec) -> tuple[str, ...]:
    """Full names of the modules that are trained in full; peft compares the ends of names."""
    paths = [path for path, part in module.named_modules() if path and [*part.parameters()]]
    for target in lora.modules_to_save:
        if not any(path.endswith(target) for path in paths):
            what = f"not the end of the name of a module with weights of {name}"
            raise ModelError(_unknown("modules_to_save", target, what, paths))
    return tuple(path for path in paths if path.endswith(lora.modules_to_save))


def _is_linear(part: nn.Module) -> bool:
    linear = isinstance(part, nn.Linear) or is_conv1d(part)
    # `nn.MultiheadAttention` reads the weight of this one without calling the layer
    return linear and not isinstance(part, NonDynamicallyQuantizableLinear)


def _is_embedding(part: nn.Module) -> bool:
    # peft looks up what the layer is called with, which some position tables (OPT's) do not
    return isinstance(part, nn.Embedding) and len(inspect.signature(part.forward).parameters) == 1


def _matches_target(target: str, path: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _unknown(key: str, target: str, what: str, paths: list[str]) -> str:
    leaves = {path.rpartition(".")[2] for path in paths if not path[-1].isdigit()} or paths
    near = difflib.get_close_matches(
        target.rpartition(".")[2], sorted(leaves), n=_MOST_SUGGESTIONS, cutoff=0.0
    )
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    return f"train.lora.{key} has {target!r}, which is {what}{hint}"
