"""Work of single operators (products, attention, collectives, traffic), and sums over a variant."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from search_spaces.safety.files import packaged_table
from workers.models.experts import grouped_sizes

_OPERATORS = packaged_table(__package__, "operators.yaml")
_SILENT, _LOOKUPS = (frozenset(_OPERATORS[kind]) for kind in ("silent", "lookups"))
_GATHERS = ("_c10d_functional::all_gather_into_tensor",)  # their results count, not their inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`batch` products of (rows x inner) times (inner x columns)."""

    batch: int
    rows: float  # mean over the products, as are columns and inner
    columns: float
    inner: float
    element_bytes: int

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes that may depend on the micro-batch."""
        return (self.batch, self.rows, self.columns, self.inner)

    @property
    def form(self) -> tuple[int, ...]:
        """Properties that may not depend on the micro-batch."""
        return (self.element_bytes,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedCall:
    """One attention kernel; `heads` counts the heads of all samples together."""

    heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int  # of a head's values
    causal: bool
    masked: bool  # by a tensor
    element_bytes: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that may depend on the micro-batch."""
        return (self.heads, self.queries, self.keys)

    @property
    def form(self) -> tuple[int, ...]:
        """Properties that may not depend on the micro-batch."""
        return (self.head_size, int(self.causal), self.element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """The work of an operator; all zero for a view."""

    products: tuple[Product, ...] = ()
    attention: FusedCall | None = None
    traffic_bytes: int = 0
    launches: int = 0
    exchanged_bytes: int = 0
    exchanges: int = 0


NO_WORK = OperatorWork()


def work_of(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any], result: object
) -> OperatorWork:
    """Returns the work of a call of an aten operator, a collective or a user's operator."""
    name = _name(operator)
    if name in _SILENT or operator.is_view:
        return NO_WORK
    read, written = tuple(tensors(args, kwargs)), tuple(tensors(result))
    if name.startswith("_c10d_functional::"):
        exchanged = written if name in _GATHERS else read
        return OperatorWork(exchanged_bytes=sum(map(dense_bytes, exchanged)), exchanges=1)
    if "scaled_dot_product" in name or name.startswith(("flash_attn::", "flash_attn_3::")):
        return OperatorWork(attention=_attention(operator, args, kwargs), launches=1)
    products_of = _PRODUCTS.get(name)
    if products_of is not None:
        return OperatorWork(products=tuple(products_of(args)), launches=1)
    if not (read or written) or _only_views(read, written, operator):
        return NO_WORK
    sizes = [dense_bytes(tensor) for tensor in (*read, *written)]
    if name in _LOOKUPS and read:
        sizes[0] = min(sizes[0], sum(sizes[len(read) :]))
    return OperatorWork(traffic_bytes=sum(sizes), launches=1)


def tensors(*values: object) -> Iterator[torch.Tensor]:
    """Returns all tensors in a call's arguments or results."""
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def dense_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of memory that a tensor covers; expanded dimensions count once."""
    sizes = (
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0
    )
    return prod(sizes) * tensor.element_size()


@cache
def _name(operator: Any) -> str:
    return operator._schema.name


def _only_views(
    read: tuple[torch.Tensor, ...], written: tuple[torch.Tensor, ...], operator: Any
) -> bool:
    if operator._schema.is_mutable or not written:
        return False
    storages = {tensor.untyped_storage()._cdata for tensor in read}
    return all(tensor.untyped_storage()._cdata in storages for tensor in written)


def _attention(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> FusedCall:
    named = _named(operator, args, kwargs)
    query = named.get("query", named.get("q"))
    key = named.get("key", named.get("k"))
    value = named.get("value", named.get("v"))
    assert query is not None
    assert key is not None
    assert value is not None
    # flash-attn's own layout is (samples, tokens, heads, head size)
    tokens, heads = (2, 1) if operator.namespace == "aten" else (1, 2)
    return FusedCall(
        heads=query.shape[0] * query.shape[heads],
        queries=query.shape[tokens],
        keys=key.shape[tokens],
        head_size=query.shape[3],
        value_size=value.shape[3],
        causal=bool(named.get("is_causal", named.get("causal", False))),
        masked=named.get("attn_bias", named.get("attn_mask")) is not None,
        element_bytes=query.element_size(),
    )


def _named(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in operator._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _product(
    operand: torch.Tensor, batch: int, rows: float, columns: float, inner: float
) -> Product:
    size = operand.element_size()
    return Product(batch=batch, rows=rows, columns=columns, inner=inner, element_bytes=size)


def _mm(left: torch.Tensor, right: torch.Tensor) -> Iterator[Product]:
    columns = right.shape[1] if right.dim() > 1 else 1
    yield _product(left, 1, left.shape[0], columns, left.shape[1])


def _bmm(left: torch.Tensor, right: torch.Tensor) -> Iterator[Product]:
    yield _product(left, left.shape[0], left.shape[1], right.shape[2], left.shape[2])


def _grouped(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None
) -> Iterator[Product]:
    """Yields one product for each expert, whose rows are its tokens if they spread evenly."""
    if offs is None:
        yield from _bmm(left, right)
        return
    yield _product(left, *grouped_sizes(left, right, offs))


def _convolution(args: Sequence[Any]) -> Iterator[Product]:
    """Yields the product of the unfolded input with the kernel (im2col)."""
    inputs, weight, strides, paddings, dilations = args[0], args[1], args[3], args[4], args[5]
    output_sizes = [
        (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, padding, dilation in zip(
            inputs.shape[2:], weight.shape[2:], strides, paddings, dilations, strict=False
        )
    ]
    groups, rows = args[8], inputs.shape[0] * prod(output_sizes)
    yield _product(inputs, groups, rows, weight.shape[0] // groups, weight[0].numel())


def _convolution_backward(args: Sequence[Any]) -> Iterator[Product]:
    gradient, weight, groups, mask = args[0], args[2], args[9], args[10]
    rows = gradient.shape[0] * prod(gradient.shape[2:])
    inner, columns = weight[0].numel(), weight.shape[0] // groups
    if mask[0]:
        yield _product(gradient, groups, rows, inner, columns)
    if mask[1]:
        yield _product(gradient, groups, columns, inner, rows)


_PRODUCTS: dict[str, Callable[[Sequence[Any]], Iterator[Product]]] = {
    "aten::mm": lambda args: _mm(args[0], args[1]),
    "aten::addmm": lambda args: _mm(args[1], args[2]),
    "aten::addmm_": lambda args: _mm(args[1], args[2]),
    "aten::_addmm_activation": lambda args: _mm(args[1], args[2]),
    "aten::mv": lambda args: _mm(args[0], args[1]),
    "aten::bmm": lambda args: _bmm(args[0], args[1]),
    "aten::baddbmm": lambda args: _bmm(args[1], args[2]),
    "aten::_grouped_mm": lambda args: _grouped(*args[:3]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
