"""What a footprint says of a whole step on one rank, by adding up its parts."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.footprint import Part, Pass, Variant

_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5  # in a kernel of attention


def saved_bytes(variant: Variant, micro_batch: int, tensor: int = 1) -> float:
    """What lies in memory at the end of forward, weights apart."""
    return sum(float(part.saved_bytes.at(micro_batch, tensor)) for part in _in_order(variant))


def peak_bytes(variant: Variant, micro_batch: int, tensor: int = 1) -> float:
    """The most that lies in memory in forward and backward, weights and their gradients apart."""
    level, highest = 0.0, 0.0
    for part in _in_order(variant):
        level += float(part.saved_bytes.at(micro_batch, tensor))
        for direction in (part.forward, part.backward):
            highest = max(highest, level + float(direction.transient_bytes.at(micro_batch, tensor)))
    return highest


def flops(variant: Variant, micro_batch: int, tensor: int = 1) -> float:
    """Operations in matrix products and in kernels of attention, nothing recomputed.

    All pairs of tokens count, those that a causal mask blocks too, as in torch's counter.
    """
    return sum(
        _flops(part.forward, _FORWARD_PRODUCTS, micro_batch, tensor)
        + _flops(part.backward, _BACKWARD_PRODUCTS, micro_batch, tensor)
        for part in _in_order(variant)
    )


def _in_order(variant: Variant) -> Iterator[Part]:
    yield variant.embedding
    blocks = {place: kind.part for kind in variant.blocks for place in kind.indices}
    for place in sorted(blocks):
        yield blocks[place]
    yield variant.head


def _flops(work: Pass, products: int, micro_batch: int, tensor: int) -> float:
    total = 0.0
    for matmul in work.matmuls:
        sizes = (matmul.batch, matmul.rows, matmul.columns, matmul.inner)
        done = 2.0 * matmul.count
        for size in sizes:
            done *= size.at(micro_batch, tensor)
        total += done
    for kernel in work.attentions:
        done = 2.0 * products * kernel.head_size * kernel.count
        for size in (kernel.heads, kernel.queries, kernel.keys):
            done *= size.at(micro_batch, tensor)
        total += done
    return total
