"""The host's time per operator of a Transformer block: eager, recomputed selectively, compiled."""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from search_spaces.hardware.device import BlockLaunches
from search_spaces.plan import Precision
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models import function
from workers.models.disk_cache import cache_folder, content_digest, save_file
from workers.models.load import build
from workers.models.small_model import random_tokens, small_fields_of, small_model, task_inputs
from workers.models.stack import find_blocks
from workers.parallel.compile import missing_for_compile
from workers.plain_torch.blocks import compile_blocks, reset_compiler
from workers.plain_torch.data_parallel import autocast
from workers.plain_torch.selective import saving_contexts
from workers.probe.rates import best_seconds
from workers.tracing.operators import tensors, work_of

_TOKENS = 16
_SECONDS = 0.3  # at the start of a sweep, whose first trial waits for it
STAND_IN = ModelSpec(name="llama-3.2-1b")
_ADAPTER: TypeAdapter[BlockLaunches] = TypeAdapter(BlockLaunches)


def cached_block_launches(
    model: ModelSpec, train: TrainSpec, device: torch.device, hardware: Mapping[str, str]
) -> BlockLaunches:
    """Returns what `block_launches` measured on this hardware before, or measures it now.

    Args:
        model: The model.
        train: Its precision counts.
        device: Where it is measured.
        hardware: What else the host's time depends on: device, processor, versions.
    """
    key = {"model": model.model_dump(mode="json"), "precision": train.precision, **hardware}
    file = cache_folder("launches") / f"{content_digest(key)}.json"
    with contextlib.suppress(OSError, ValidationError):
        return _ADAPTER.validate_json(file.read_bytes())
    launches = block_launches(model, train, device, seconds=_SECONDS, compiles=False)
    save_file(file, _ADAPTER.dump_json(launches))
    return launches


def block_launches(
    model: ModelSpec, train: TrainSpec, device: torch.device, *, seconds: float, compiles: bool
) -> BlockLaunches:
    """Measures a narrow block of the model's class, which the host limits on any GPU.

    Args:
        model: The model. A block of Llama stands in for one that makes its own batches.
        train: Its precision counts.
        device: Where it is measured.
        seconds: Time of each measurement.
        compiles: Measure a compiled block too; its compilation takes half a minute.
    """
    block, *calls = _small_block(model, train, device)
    eager, selective = (_backpropagated(call, train.precision, device) for call in calls)
    launches = _launches(eager)
    eager()
    repeated = _launches(selective) - _launches(eager)  # with gradients to add to, both
    eager_seconds = best_seconds(eager, device, seconds)
    more = best_seconds(selective, device, seconds) - eager_seconds
    compiled = None
    if compiles and missing_for_compile(device) is None:
        compile_blocks([block], mode="default")
        with contextlib.suppress(Exception):  # a block that cannot be compiled is not tried either
            compiled = best_seconds(eager, device, seconds) / launches
        reset_compiler()
    return BlockLaunches(
        block_launch_seconds=eager_seconds / launches,
        recomputed_launch_seconds=more / repeated if repeated > 0 and more > 0 else None,
        compiled_launch_seconds=compiled,
    )


def _small_block(
    spec: ModelSpec, train: TrainSpec, device: torch.device
) -> tuple[nn.Module, Callable[[], Any], Callable[[], Any]]:
    """Returns a block, a call of it as its model does, and one with selective recomputation."""
    is_function = function.is_function(spec)
    built = build(STAND_IN if is_function else spec, train, attention="eager")
    if (task := built.task) is None:
        return _small_block(STAND_IN, train, device)
    module = built.module
    attention = "sdpa" if getattr(module, "_supports_sdpa", False) else "eager"
    model = small_model(type(module), small_fields_of(module, task), attention)
    model = model.to(device).train()
    block = find_blocks(model)[0]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def take(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        # backward goes on to what comes before, the first argument
        if arguments:
            arguments = (arguments[0].detach().requires_grad_(), *arguments[1:])
        else:
            name = next(iter(keywords))
            keywords = {**keywords, name: keywords[name].detach().requires_grad_()}
        calls.append((arguments, keywords))

    hook = block.register_forward_pre_hook(take, with_kwargs=True)
    inputs = task_inputs(task, random_tokens(1, _TOKENS), [_TOKENS])
    with torch.no_grad():
        model(**{name: value.to(device) for name, value in inputs.items()})
    hook.remove()
    arguments, keywords = calls[0]
    on_device = partial(saving_contexts, on_host=False)
    recomputed = partial(checkpoint, block, use_reentrant=False, context_fn=on_device)
    return (
        block,
        partial(block, *arguments, **keywords),
        partial(recomputed, *arguments, **keywords),
    )


def _backpropagated(
    run: Callable[[], Any], precision: Precision, device: torch.device
) -> Callable[[], None]:
    """Returns a call of forward and backward."""

    def compute() -> None:
        with autocast(precision, device):
            outputs = run()
        sum(one.sum() for one in tensors(outputs) if one.requires_grad).backward()  # type: ignore[union-attr]

    return compute


def _launches(run: Callable[[], None]) -> int:
    with _Counter() as counter:
        run()
    return int(counter.launches)


class _Counter(TorchDispatchMode):
    """Counts operators as a footprint does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.launches += work_of(func, args, kwargs or {}, result).launches
        return result
