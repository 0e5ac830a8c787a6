"""What one operator does: a matrix product, attention in one kernel, a collective, or traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from search_spaces.costs.footprint import Part, Pass, Variant
from workers.models.experts import grouped_sizes

# Results without a kernel: memory that nobody writes to, or questions about a tensor.
_SILENT = frozenset(
    {
        *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"),
        *("aten::new_empty_strided", "aten::_fused_sdp_choice", "aten::_local_scalar_dense"),
        *("_c10d_functional::wait_tensor", "aten::lift_fresh", "aten::resize_", "aten::set_"),
    }
)
# They read no more of their first input than they give.
_LOOKUPS = frozenset(
    {
        *("aten::embedding", "aten::gather", "aten::index", "aten::index_select"),
        *("aten::nll_loss_forward", "aten::nll_loss2d_forward", "aten::slice_backward"),
    }
)
_GATHERS = ("_c10d_functional::all_gather_into_tensor",)  # whose results count, not their inputs
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5  # in a kernel of attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`batch` products of (rows x inner) times (inner x columns)."""

    batch: int
    rows: float  # in the mean over the products, and so are the other two
    columns: float
    inner: float
    element_bytes: int

    @property
    def sizes(self) -> tuple[float, ...]:
        """What may depend on the micro-batch."""
        return (self.batch, self.rows, self.columns, self.inner)

    @property
    def form(self) -> tuple[int, ...]:
        """What may not."""
        return (self.element_bytes,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedCall:
    """One kernel that computes attention for `heads` heads of all samples together."""

    heads: int
    queries: int
    keys: int
    head_size: int
    causal: bool
    element_bytes: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """What may depend on the micro-batch."""
        return (self.heads, self.queries, self.keys)

    @property
    def form(self) -> tuple[int, ...]:
        """What may not."""
        return (self.head_size, int(self.causal), self.element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an operator does; nothing for a view."""

    products: tuple[Product, ...] = ()
    attention: FusedCall | None = None
    traffic_bytes: int = 0
    launches: int = 0
    exchanged_bytes: int = 0
    exchanges: int = 0


IDLE = Work()


def work_of(operator: Any, args: Sequence[Any], kwargs: dict[str, Any], result: object) -> Work:
    """What a call of an aten operator, a collective or an operator of the user's does."""
    name = _name(operator)
    if name in _SILENT or operator.is_view:
        return IDLE
    read, written = tuple(tensors(args, kwargs)), tuple(tensors(result))
    if name.startswith("_c10d_functional::"):
        moved = written if name in _GATHERS else read
        return Work(exchanged_bytes=sum(map(dense_bytes, moved)), exchanges=1)
    if "scaled_dot_product" in name or name.startswith(("flash_attn::", "flash_attn_3::")):
        return Work(attention=_attention(operator, args, kwargs), launches=1)
    found = _PRODUCTS.get(name)
    if found is not None:
        return Work(products=tuple(found(args)), launches=1)
    if not read and not written:
        return IDLE
    if _only_views(read, written, operator):
        return IDLE
    if name in _LOOKUPS and read:
        written_bytes = sum(map(dense_bytes, written))
        rest = sum(map(dense_bytes, read[1:]))
        first = min(dense_bytes(read[0]), written_bytes)
        return Work(traffic_bytes=first + rest + written_bytes, launches=1)
    return Work(traffic_bytes=sum(map(dense_bytes, (*read, *written))), launches=1)


def tensors(*values: object) -> Iterator[torch.Tensor]:
    """All tensors in a call's arguments or results."""
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def dense_bytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor reaches in memory: those that an expanded one repeats count once."""
    sizes = (
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0
    )
    return prod(sizes) * tensor.element_size()


@cache
def _name(operator: Any) -> str:
    name: str = operator._schema.name
    return name


def _only_views(
    read: tuple[torch.Tensor, ...], written: tuple[torch.Tensor, ...], operator: Any
) -> bool:
    """Whether all that is returned was there before, and nothing was written to."""
    if operator._schema.is_mutable or not written:
        return False
    there = {tensor.untyped_storage()._cdata for tensor in read}
    return all(tensor.untyped_storage()._cdata in there for tensor in written)


def _attention(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> FusedCall:
    named = _named(operator, args, kwargs)
    query = named.get("query", named.get("q"))
    key = named.get("key", named.get("k"))
    assert query is not None
    assert key is not None
    in_rows = operator.namespace != "aten"  # flash-attn: (samples, tokens, heads, head size)
    tokens, heads = (1, 2) if in_rows else (2, 1)
    return FusedCall(
        heads=query.shape[0] * query.shape[heads],
        queries=query.shape[tokens],
        keys=key.shape[tokens],
        head_size=query.shape[3],
        causal=bool(named.get("is_causal", named.get("causal", False))),
        element_bytes=query.element_size(),
    )


def _named(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in operator._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _mm(left: torch.Tensor, right: torch.Tensor) -> Iterator[Product]:
    yield Product(
        batch=1,
        rows=left.shape[0],
        columns=right.shape[1] if right.dim() > 1 else 1,
        inner=left.shape[1],
        element_bytes=left.element_size(),
    )


def _bmm(left: torch.Tensor, right: torch.Tensor) -> Iterator[Product]:
    yield Product(
        batch=left.shape[0],
        rows=left.shape[1],
        columns=right.shape[2],
        inner=left.shape[2],
        element_bytes=left.element_size(),
    )


def _grouped(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None
) -> Iterator[Product]:
    """One product for each expert, tokens spread evenly: only those routed to it are its rows."""
    if offs is None:
        yield from _bmm(left, right)
        return
    batch, rows, columns, inner = grouped_sizes(left, right, offs)
    yield Product(
        batch=batch,
        rows=rows,
        columns=columns,
        inner=inner,
        element_bytes=left.element_size(),
    )


def _convolution(args: Sequence[Any]) -> Iterator[Product]:
    """As the product of the unfolded input with the kernel (im2col)."""
    inputs, weight, strides, paddings, spread = args[0], args[1], args[3], args[4], args[5]
    places = [
        (size + 2 * padding - gap * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, padding, gap in zip(
            inputs.shape[2:], weight.shape[2:], strides, paddings, spread, strict=False
        )
    ]
    groups = args[8]
    yield Product(
        batch=groups,
        rows=inputs.shape[0] * prod(places),
        columns=weight.shape[0] // groups,
        inner=weight[0].numel(),
        element_bytes=inputs.element_size(),
    )


def _convolution_backward(args: Sequence[Any]) -> Iterator[Product]:
    gradient, weight, groups, mask = args[0], args[2], args[9], args[10]
    rows = gradient.shape[0] * prod(gradient.shape[2:])
    inner, columns = weight[0].numel(), weight.shape[0] // groups
    element = gradient.element_size()
    if mask[0]:
        yield Product(batch=groups, rows=rows, columns=inner, inner=columns, element_bytes=element)
    if mask[1]:
        yield Product(batch=groups, rows=columns, columns=inner, inner=rows, element_bytes=element)


_PRODUCTS: dict[str, Callable[[Sequence[Any]], Iterator[Product]]] = {
    "aten::mm": lambda args: _mm(args[0], args[1]),
    "aten::addmm": lambda args: _mm(args[1], args[2]),
    "aten::_addmm_activation": lambda args: _mm(args[1], args[2]),
    "aten::mv": lambda args: _mm(args[0], args[1]),
    "aten::bmm": lambda args: _bmm(args[0], args[1]),
    "aten::baddbmm": lambda args: _bmm(args[1], args[2]),
    "aten::_grouped_mm": lambda args: _grouped(*args[:3]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}


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
