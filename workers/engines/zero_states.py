"""Bytes of model state that a DeepSpeed engine holds on a rank's device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from workers.engines.base import StateBytes


def zero_state_bytes(engine: Any, device: torch.device) -> StateBytes:
    """What lies on the device after a step, counted in the engine's own tensors.

    Each piece of memory counts once. Master weights are optimizer states. Gradients, which are
    given back at the end of a step, count as they are just before it: whole in stages 0 and 1,
    this rank's part in stages 2 and 3.
    """
    weights = _on(device, _weights(engine.module))
    states = {
        place: size
        for place, size in _on(device, _optimizer_tensors(engine)).items()
        if place not in weights
    }
    return StateBytes(
        weights=sum(weights.values()),
        gradients=_gradients(engine, device),
        optimizer_states=sum(states.values()),
    )


def _weights(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """What a module holds of its weights: under ZeRO-3 shards, and small ones whole too."""
    for weight in module.parameters():
        yield weight.data
        shard = getattr(weight, "ds_tensor", None)
        if shard is not None:
            yield shard.data


def _masters(engine: Any) -> list[torch.Tensor]:
    """What the optimizer updates: flat copies in fp32, or the weights themselves."""
    groups = engine.basic_optimizer.param_groups
    flat = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)  # ZeRO-3: in turn
    return list(flat or chain.from_iterable(group["params"] for group in groups))


def _optimizer_tensors(engine: Any) -> Iterator[torch.Tensor]:
    yield from _masters(engine)
    for state in engine.basic_optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _gradients(engine: Any, device: torch.device) -> int:
    buffer = getattr(engine.optimizer, "grad_partitions_flat_buffer", None)  # ZeRO-3
    if buffer is not None:
        return sum(_on(device, [buffer]).values())
    trained = [weight for weight in engine.module.parameters() if weight.requires_grad]
    if engine.zero_optimization_partition_gradients():
        masters = sum(master.numel() for master in _masters(engine))
        return masters * trained[0].element_size() if trained[0].device.type == device.type else 0
    return sum(weight.numel() * weight.element_size() for weight in trained)


def _on(device: torch.device, tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes of each piece of memory that the tensors lie in, by its address."""
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.device.type == device.type and tensor.numel() > 0
    }
