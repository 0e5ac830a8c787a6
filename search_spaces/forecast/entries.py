"""The work of compute cases, before any efficiency: flops, bytes and shapes, as flat columns.

A case is what the seconds of a micro-batch depend on: a variant of a footprint, a micro-batch, a
tensor degree, a device and its precision. Many plans share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from search_spaces.footprint import FusedAttention, Matmul, Part, Pass, Variant
from search_spaces.forecast.executions import Counts, Numbers

# passes of a micro-batch; blocks are an average one
PASSES = (
    "embedding_forward",
    "embedding_backward",
    "block_forward",
    "block_backward",
    "block_recomputed",  # what selective recomputation does again
    "head_forward",
    "head_backward",
)
FORWARD_FLOPS, BACKWARD_FLOPS = 4.0, 10.0
"""FLOPs of fused attention for each head, query, key and head size: two products forward, five
backward, of which one recomputes the scores (Dao 2023, arXiv:2307.08691, section 3)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """Matmuls and attention kernels, one in a row; `case * len(PASSES) + pass` is its `slot`."""

    slot: Counts
    flops: Numbers  # of all calls
    batch: Numbers
    rows: Numbers
    columns: Numbers
    inner: Numbers
    element_bytes: Numbers
    is_attention: Numbers  # 1 or 0
    calls: Numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassSums:
    """What each pass of each case does beside: arrays of shape (cases, passes)."""

    traffic_bytes: Numbers
    launches: Numbers
    exchanged_bytes: Numbers
    exchanges: Numbers


def weighted_passes(variant: Variant, depth: int) -> tuple[tuple[tuple[float, Pass], ...], ...]:
    """For each of `PASSES`, what it consists of: weights and passes of the kinds of blocks."""
    kinds = [(len(kind.indices) / depth, kind.part) for kind in variant.blocks] if depth else []
    return (
        ((1.0, variant.embedding.forward),),
        ((1.0, variant.embedding.backward),),
        tuple((share, part.forward) for share, part in kinds),
        tuple((share, part.backward) for share, part in kinds),
        tuple((share, part.recomputed) for share, part in kinds),
        ((1.0, variant.head.forward),),
        ((1.0, variant.head.backward),),
    )


def mean_part(variant: Variant, depth: int) -> tuple[tuple[float, Part], ...]:
    """The kinds of blocks, each with its share of the depth."""
    return tuple((len(kind.indices) / depth, kind.part) for kind in variant.blocks)


def kernels_of(
    variant: Variant, depth: int, micro_batch: Numbers, tensor: Numbers, case: Counts
) -> Kernels:
    """The kernels of cases that share a variant.

    Args:
        variant: What was traced.
        depth: Blocks of the model.
        micro_batch: Samples, for each case.
        tensor: Tensor degrees, for each case.
        case: Numbers of the cases.
    """
    columns: list[tuple[Numbers, ...]] = []
    for index, parts in enumerate(weighted_passes(variant, depth)):
        slot = (case * len(PASSES) + index).astype(np.float64)
        backward = PASSES[index].endswith("backward")
        for share, found in parts:
            columns += [(slot, *_matmul(one, share, micro_batch, tensor)) for one in found.matmuls]
            columns += [
                (slot, *_attention(one, share, micro_batch, tensor, backward))
                for one in found.attentions
            ]
    stacked = (
        [np.concatenate(column) for column in zip(*columns, strict=True)]
        if columns
        else [np.zeros(0)] * 9
    )
    return Kernels(
        slot=stacked[0].astype(np.int64),
        flops=stacked[1],
        batch=stacked[2],
        rows=stacked[3],
        columns=stacked[4],
        inner=stacked[5],
        element_bytes=stacked[6],
        is_attention=stacked[7],
        calls=stacked[8],
    )


def sums_of(variant: Variant, depth: int, micro_batch: Numbers, tensor: Numbers) -> PassSums:
    """What is no kernel of those, for cases that share a variant."""
    passes = weighted_passes(variant, depth)

    def summed(name: str) -> Numbers:
        return np.stack(
            [
                sum(
                    (share * _extent(found, name, micro_batch, tensor) for share, found in parts),
                    start=np.zeros(len(micro_batch)),
                )
                for parts in passes
            ],
            axis=1,
        )

    return PassSums(
        traffic_bytes=summed("traffic_bytes"),
        launches=summed("launches"),
        exchanged_bytes=summed("exchanged_bytes"),
        exchanges=summed("exchanges"),
    )


def _extent(found: Pass, name: str, micro_batch: Numbers, tensor: Numbers) -> Numbers:
    value = getattr(found, name)
    if isinstance(value, int):
        return np.full(len(micro_batch), float(value))
    amount: Numbers = np.broadcast_to(value.at(micro_batch, tensor), micro_batch.shape)
    return amount


def _matmul(
    matmul: Matmul, share: float, micro_batch: Numbers, tensor: Numbers
) -> Iterator[Numbers]:
    shape = micro_batch.shape
    batch, rows, columns, inner = (
        np.broadcast_to(extent.at(micro_batch, tensor), shape)
        for extent in (matmul.batch, matmul.rows, matmul.columns, matmul.inner)
    )
    calls = share * matmul.count
    yield 2.0 * calls * batch * rows * columns * inner
    yield from (batch, rows, columns, inner)
    yield np.full(shape, float(matmul.element_bytes))
    yield np.zeros(shape)
    yield np.full(shape, calls)


def _attention(
    attention: FusedAttention,
    share: float,
    micro_batch: Numbers,
    tensor: Numbers,
    backward: bool,
) -> Iterator[Numbers]:
    shape = micro_batch.shape
    heads, queries, keys = (
        np.broadcast_to(extent.at(micro_batch, tensor), shape)
        for extent in (attention.heads, attention.queries, attention.keys)
    )
    calls = share * attention.count
    each = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * (0.5 if attention.causal else 1.0)
    yield each * calls * heads * queries * keys * attention.head_size
    yield from (heads, queries, keys, np.full(shape, float(attention.head_size)))
    yield np.full(shape, float(attention.element_bytes))
    yield np.ones(shape)
    yield np.full(shape, calls)
