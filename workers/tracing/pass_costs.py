"""Costs of each part of a model in one pass: memory over time, and work in each direction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.tracing.operators import FusedCall, Product
from workers.tracing.recorder import EMBEDDING, HEAD, Log, Operation, Storage
from workers.tracing.step import TracedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """The work of one part in one direction.

    `above_bytes` has, for each operator, the bytes in memory except tensors saved for backward,
    weights and their gradients.
    """

    names: tuple[str, ...]
    products: tuple[Product, ...]
    attentions: tuple[FusedCall, ...]
    traffic_bytes: int
    launches: int
    exchanged_bytes: int
    exchanges: int
    above_bytes: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCosts:
    """One part in one run."""

    trained: int
    frozen: int
    largest_weight: int
    saved_bytes: int
    weight_copies_bytes: int  # part of saved_bytes
    kept_bytes: int
    input_bytes: int
    forward: PassCosts
    backward: PassCosts
    recomputed: PassCosts


def part_costs(traced: TracedStep, blocks: tuple[int, ...]) -> dict[int, PartCosts]:
    """Returns the costs of the embedding, the traced blocks and the head."""
    log = traced.log
    parts = (EMBEDDING, HEAD, *blocks)
    saved = {part: sum(s.size_bytes for s in _saved(log, part)) for part in parts}
    transient = _transient_bytes(log, saved)
    return {part: _read_part(traced, part, saved[part], transient) for part in saved}


def tied_parameters(traced: TracedStep) -> int:
    """Returns the number of parameters that the embedding and the head share."""
    return sum(weight.numbers for weight in traced.weights if len(weight.parts) > 1)


def _read_part(
    traced: TracedStep, part: int, saved_bytes: int, transient: NDArray[np.float64]
) -> PartCosts:
    log, ends = traced.log, traced.log.forward_ends
    weights = [weight for weight in traced.weights if part in weight.parts]
    own = [index for index, operation in enumerate(log.operations) if operation.part == part]
    forward = [index for index in own if index < ends]
    recomputed = [index for index in forward if not log.operations[index].kept]
    backward = [index for index in own if index >= ends]
    return PartCosts(
        trained=sum(weight.numbers for weight in weights if weight.trains),
        frozen=sum(weight.numbers for weight in weights if not weight.trains),
        largest_weight=max((weight.numbers for weight in weights), default=0),
        saved_bytes=saved_bytes,
        weight_copies_bytes=sum(s.size_bytes for s in _saved(log, part) if s.copies_weight),
        kept_bytes=sum(
            s.size_bytes
            for s in log.storages
            if s.kept and s.part == part and s.made_at < ends and s.behind is None
        ),
        input_bytes=log.hidden_bytes.get(part, 0),
        forward=_read_pass(log, forward, transient),
        backward=_read_pass(log, backward, transient),
        recomputed=_read_pass(log, recomputed, transient),
    )


def _read_pass(log: Log, indices: list[int], transient: NDArray[np.float64]) -> PassCosts:
    operations: list[Operation] = [log.operations[index] for index in indices]
    work = [operation.work for operation in operations]
    return PassCosts(
        names=tuple(operation.name for operation in operations),
        products=tuple(product for one in work for product in one.products),
        attentions=tuple(one.attention for one in work if one.attention is not None),
        traffic_bytes=sum(one.traffic_bytes for one in work),
        launches=sum(one.launches for one in work),
        exchanged_bytes=sum(one.exchanged_bytes for one in work),
        exchanges=sum(one.exchanges for one in work),
        above_bytes=transient[indices],
    )


def _saved(log: Log, part: int) -> Iterable[Storage]:
    """Yields storages that a part made or received in forward, and that outlive forward."""
    ends = log.forward_ends
    return (
        storage
        for storage in log.storages
        if storage.part == part
        and storage.made_at < ends
        and (storage.gone_at is None or storage.gone_at > ends)
    )


def live_bytes(log: Log) -> NDArray[np.float64]:
    """Returns the bytes in memory at each operator, without weights and their gradients."""
    count = len(log.operations)
    change = np.zeros(count + 1)
    gradients = {id(storage) for storage in log.gradients}
    for storage in log.storages:
        if id(storage) not in gradients:
            change[storage.made_at] += storage.size_bytes
            change[count if storage.gone_at is None else storage.gone_at] -= storage.size_bytes
    return np.cumsum(change)[:count]


def _transient_bytes(log: Log, saved: dict[int, int]) -> NDArray[np.float64]:
    """Returns the bytes in memory at each operator, except tensors saved for backward.

    A part's tensors are saved from its first operator in forward to its last in backward.
    """
    count, ends = len(log.operations), log.forward_ends
    level = np.zeros(count)
    parts = np.array([operation.part for operation in log.operations])
    for part, size_bytes in saved.items():
        (own,) = np.nonzero(parts == part)
        first = own.min(initial=ends)
        in_backward = own[own >= ends]
        last = in_backward.max() if len(in_backward) else count
        level[first : last + 1] += size_bytes
    return live_bytes(log) - level
