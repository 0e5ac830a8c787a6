"""Models from a user's function, which returns a module and a batch maker."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from search_spaces.errors import ModelError
from search_spaces.facts import ModelFacts
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.sections import LoraSpec, TrainSpec
from workers.data.user_batches import inputs_of
from workers.models.block_calls import bypasses_hooks
from workers.models.built import BatchMaker, BuiltModel, seeded
from workers.models.fake_memory import FakeMemory
from workers.models.lora import adapters_of, add_adapters, trainable_parameters
from workers.models.stack import find_blocks
from workers.models.tensor_plan import parallel_facts
from workers.models.trust import check_trusted
from workers.models.user_code import UserCodeError, importable_from_cwd, user_code_errors

PROBE_SAMPLES = (0, 1)  # sample numbers of the batch that probes a model
_NAME = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


def is_function(spec: ModelSpec) -> bool:
    """Tells a name of the form package.module:function from others."""
    return ":" in spec.name


def describe_function(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts from a call on the meta device, made once per process and spec.

    A driver calls it in a process of its own: see `workers.models.isolation`.

    A function may be unable to build there, or may raise for reasons of its own. The facts
    then say 0 parameters and 0 blocks, and the first trial crashes with the traceback.

    Raises:
        ModelError: If there is no such function, if the user does not trust its module, if it does
            not return (module, batch maker), or if the module cannot take `train`'s adapters.
    """
    lora = adapters_of(train)
    return _facts(spec.model_dump_json(), lora.model_dump_json() if lora else None)


def build_function(spec: ModelSpec, train: TrainSpec) -> BuiltModel:
    """Builds the model by calling the function, its weights drawn from `train.seed`.

    Errors of the function itself pass through.

    Raises:
        ModelError: If there is no such function, if the user does not trust its module, if it does
            not return (module, batch maker), or if the module cannot take `train`'s adapters.
    """
    with importable_from_cwd(), seeded(train.seed):
        module, batch_maker = call_function(spec)
        if lora := adapters_of(train):
            add_adapters(spec.name, module, lora)
    return BuiltModel(
        module=module,
        blocks=find_blocks(module),
        task=spec.task,
        vocab_size=None,
        batch_maker=batch_maker,
        tensor_plan=tuple(spec.tensor_plan.items()),
    )


def build_fake_function(spec: ModelSpec, train: TrainSpec, mode: FakeMemory) -> BuiltModel:
    """Builds the model of fake tensors of `mode`.

    Raises:
        ModelError: As `build_function`.
    """
    with mode:
        model = build_function(spec, train.model_copy(update={"method": "full"}))
    if lora := adapters_of(train):
        with torch.device("meta"):  # peft moves adapters to their weights; fake ones cannot move
            add_adapters(spec.name, model.module, lora)
    with mode:
        for part in model.module.modules():
            for key, weight in part._parameters.items():
                if weight is not None and weight.is_meta:
                    fake = torch.empty_like(weight, device="cpu")
                    part._parameters[key] = nn.Parameter(fake, requires_grad=weight.requires_grad)
    return model


@lru_cache(maxsize=32)
def _facts(spec_json: str, lora_json: str | None) -> ModelFacts:
    spec = ModelSpec.model_validate_json(spec_json)
    module: nn.Module | None = None
    batch_maker: BatchMaker | None = None
    with importable_from_cwd():
        # outside the guard below: a wrong name must raise and not count as a failed build
        _import_function(spec.name)
        with (
            contextlib.suppress(UserCodeError),
            user_code_errors(spec.name),
            seeded(0),
            torch.device("meta"),
        ):
            module, batch_maker = call_function(spec)
    if module is not None and lora_json is not None:
        with seeded(0), torch.device("meta"):
            add_adapters(spec.name, module, LoraSpec.model_validate_json(lora_json))
    return ModelFacts(
        name=spec.name,
        architecture=type(module).__name__ if module is not None else spec.name,
        parameters=sum(weight.numel() for weight in module.parameters()) if module else 0,
        trainable=trainable_parameters(module) if module is not None and lora_json else None,
        blocks=len(find_blocks(module)) if module is not None else 0,
        attentions=("sdpa",),  # the plan's attention is not applied; sdpa is Plimsoll's choice
        packing=(),
        max_sequence_length=None,
        **_parallel_facts(spec, module, batch_maker),
    )


def _parallel_facts(
    spec: ModelSpec, module: nn.Module | None, batch_maker: BatchMaker | None
) -> dict[str, Any]:
    if module is None or batch_maker is None:
        return {}
    inputs = lru_cache(lambda: inputs_of(module, batch_maker(PROBE_SAMPLES)))
    return {
        **parallel_facts(module, spec.tensor_plan, inputs),
        "bypasses_hooks": bypasses_hooks(module, inputs),
    }


def call_function(spec: ModelSpec) -> tuple[nn.Module, BatchMaker]:
    """Calls a user's function, whose own errors pass through.

    Raises:
        ModelError: If there is no such function, or it does not return (module, batch maker).
    """
    returned = _import_function(spec.name)(**spec.config)
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    if not is_pair or not isinstance(returned[0], nn.Module) or not callable(returned[1]):
        raise ModelError(
            f"{spec.name} returned {_type_names(returned)}, must return (module, batch maker):"
            " an nn.Module and a function of sample numbers"
        )
    _turn_off_caches(returned[0])
    return returned[0], returned[1]


def _turn_off_caches(module: nn.Module) -> None:
    """Turns off caches of keys and values, to which a recomputed block would append again.

    They serve generation; transformers turns them off for its own recomputation.
    """
    for part in module.modules():
        config: Any = getattr(part, "config", None)
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False


def _import_function(name: str) -> Callable[..., Any]:
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise ModelError(f"model {name!r} is not of the form package.module:function")
    module_name, function_name = matched["module"], matched["function"]
    check_trusted(module_name)
    with user_code_errors(f"{module_name} cannot be imported"):
        module = importlib.import_module(module_name)
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value)]
        near = difflib.get_close_matches(function_name, names, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise ModelError(f"{module_name} has no function {function_name}{hint}")
    # a trusted module imports functions of others, such as `subprocess.run`
    check_trusted(getattr(function, "__module__", None) or type(function).__module__)
    return function


def _type_names(returned: object) -> str:
    if isinstance(returned, tuple | list):
        return f"({', '.join(type(part).__name__ for part in returned)})"
    return type(returned).__name__
