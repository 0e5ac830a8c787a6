"""What one pass tells about each part of a model: memory over time, work in each direction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.tracing.operators import FusedCall, Product
from workers.tracing.recorder import EMBEDDING, HEAD, Log, Operation, Storage
from workers.tracing.step import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReading:
    """The work of one part in one direction.

    `above_bytes` is, at each operator, what lies in memory beside what is saved for backward and
    the gradients of weights.
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
class PartReading:
    """One part in one run."""

    trained: int
    frozen: int
    largest_weight: int
    saved_bytes: int
    weight_copies_bytes: int  # of what is saved
    kept_bytes: int
    input_bytes: int
    forward: PassReading
    backward: PassReading
    recomputed: PassReading


def read_parts(traced: Traced, blocks: tuple[int, ...]) -> dict[int, PartReading]:
    """The embedding, the traced blocks and the head."""
    log = traced.log
    saved = {part: sum(s.size_bytes for s in _saved(log, part)) for part in (EMBEDDING, HEAD)}
    saved |= {part: sum(s.size_bytes for s in _saved(log, part)) for part in blocks}
    above = _above(log, saved)
    return {part: _read_part(traced, part, saved[part], above) for part in saved}


def tied_numbers(traced: Traced) -> int:
    """Numbers in weights that the embedding and the head share."""
    return sum(weight.numbers for weight in traced.weights if len(weight.parts) > 1)


def _read_part(
    traced: Traced, part: int, saved_bytes: int, above: NDArray[np.float64]
) -> PartReading:
    log, ends = traced.log, traced.log.forward_ends
    weights = [weight for weight in traced.weights if part in weight.parts]
    own = [place for place, done in enumerate(log.operations) if done.part == part]
    forward = [place for place in own if place < ends]
    again = [place for place in forward if not log.operations[place].kept]
    backward = [place for place in own if place >= ends]
    return PartReading(
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
        forward=_read_pass(log, forward, above),
        backward=_read_pass(log, backward, above),
        recomputed=_read_pass(log, again, above),
    )


def _read_pass(log: Log, places: list[int], above: NDArray[np.float64]) -> PassReading:
    done: list[Operation] = [log.operations[place] for place in places]
    work = [operation.work for operation in done]
    return PassReading(
        names=tuple(operation.name for operation in done),
        products=tuple(product for one in work for product in one.products),
        attentions=tuple(one.attention for one in work if one.attention is not None),
        traffic_bytes=sum(one.traffic_bytes for one in work),
        launches=sum(one.launches for one in work),
        exchanged_bytes=sum(one.exchanged_bytes for one in work),
        exchanges=sum(one.exchanges for one in work),
        above_bytes=above[places],
    )


def _saved(log: Log, part: int) -> Iterable[Storage]:
    """What a part made or was given in forward and what is still there when that has ended."""
    ends = log.forward_ends
    return (
        storage
        for storage in log.storages
        if storage.part == part
        and storage.made_at < ends
        and (storage.gone_at is None or storage.gone_at > ends)
    )


def alive(log: Log) -> NDArray[np.float64]:
    """Bytes in memory at each operator, weights and their gradients apart."""
    count = len(log.operations)
    change = np.zeros(count + 1)
    gradients = {id(storage) for storage in log.gradients}
    for storage in log.storages:
        if id(storage) not in gradients:
            change[storage.made_at] += storage.size_bytes
            change[count if storage.gone_at is None else storage.gone_at] -= storage.size_bytes
    return np.cumsum(change)[:count]


def _above(log: Log, saved: dict[int, int]) -> NDArray[np.float64]:
    """Bytes in memory beside what is saved.

    That is by parts which forward has come to, or which backward has not yet gone through.
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
    return alive(log) - level
