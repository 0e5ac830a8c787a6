"""Footprint of a model, measured by tracing: bytes, matmuls and traffic of each of its parts.

A footprint is a pure value that is saved as JSON; all forecasts are calculated from it.
`workers.tracing.trace` makes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from search_spaces.costs.model_work import ModelWork
from search_spaces.plan import Attention, Loss, MlpTiles, VocabMultiple
from search_spaces.specification.sections import Base

Compute = Literal["fp32", "autocast", "cast"]
"""Precision of a pass: all in fp32; fp32 weights with 16-bit matmuls by autocast (DDP and one
rank); weights cast to 16 bits as a whole (FSDP2, DeepSpeed)."""
QUANTIZED_BITS: Mapping[Base, float] = {"int8": 8.0, "nf4": 4.127}
"""Bits of a quantized parameter, with its scales: in NF4 8 bits for 64 parameters and 32 for 256
of these (Dettmers et al. 2023, arXiv:2305.14314, section 3), in int8 one for a row."""
Split = Literal["none", "tensor", "sequence"]
"""Parallelism of a block: none, tensor parallelism, or with sequence parallelism too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A quantity as a function of the micro-batch b and the tensor degree t.

    It is fixed + per_sample * b + (split_fixed + split_per_sample * b) / t, in the unit of the
    quantity.
    """

    fixed: float = 0.0
    per_sample: float = 0.0
    split_fixed: float = 0.0
    split_per_sample: float = 0.0

    def at(self, micro_batch: Any, tensor: Any = 1) -> Any:
        """Returns the quantity for numbers or arrays, which broadcast."""
        unsplit = self.fixed + self.per_sample * micro_batch
        return unsplit + (self.split_fixed + self.split_per_sample * micro_batch) / tensor


ZERO = Extent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Maximum of several quantities of one unit, and at least 0.

    The largest one at a single sample, such as the gradient of a weight, may not be the largest at
    many.
    """

    lines: tuple[Extent, ...] = ()

    def at(self, micro_batch: Any, tensor: Any = 1) -> Any:
        """Returns the maximum for numbers or arrays, which broadcast."""
        return np.max([line.at(micro_batch, tensor) for line in (ZERO, *self.lines)], axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """`count` products of the same shape: `batch` of (rows x inner) times (inner x columns)."""

    batch: Extent
    rows: Extent
    columns: Extent
    inner: Extent
    element_bytes: int  # 4 or 2
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAttention:
    """`count` calls of a fused attention kernel: sdpa or flash, forward or backward."""

    heads: Extent  # query heads of all samples together
    queries: Extent  # tokens
    keys: Extent  # tokens
    head_size: int
    causal: bool
    element_bytes: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Work of a part in one direction for one micro-batch.

    Attributes:
        matmuls: Matrix products.
        attentions: Fused attention kernels.
        traffic_bytes: Reads and writes of all other operators.
        launches: Number of operators, including matmuls and attention.
        exchanged_bytes: Bytes of a tensor rank in collectives; counts the buffer of an all-reduce,
            the result of an all-gather and the input of a reduce-scatter once.
        exchanges: Number of these collectives.
        transient_bytes: Peak of temporary tensors, without those saved for backward.
    """

    matmuls: tuple[Matmul, ...] = ()
    attentions: tuple[FusedAttention, ...] = ()
    traffic_bytes: Extent = ZERO
    launches: int = 0
    exchanged_bytes: Extent = ZERO
    exchanges: int = 0
    transient_bytes: Peak = Peak()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The embedding, one block, or the head with its loss.

    Attributes:
        trained: Trained parameters; a tensor rank holds `trained.at(0, t)` of them.
        frozen: Frozen parameters that are not quantized.
        quantized_bytes: Quantized parameters, with their scales.
        saved_bytes: Tensors that forward saves for backward: copies of weights, but not weights.
        kept_bytes: Tensors that selective recomputation saves, without the input.
        input_bytes: Hidden states that the part receives, which full recomputation saves.
        forward: Work of forward, which full recomputation repeats.
        backward: Work of backward, without recomputation.
        recomputed: Work that selective recomputation repeats.
        largest_weight: Parameters of the largest single weight.
    """

    trained: Extent
    frozen: Extent = ZERO
    quantized_bytes: Extent = ZERO
    saved_bytes: Extent = ZERO
    kept_bytes: Extent = ZERO
    input_bytes: Extent = ZERO
    forward: Pass = Pass()
    backward: Pass = Pass()
    recomputed: Pass = Pass()
    largest_weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """Blocks with the same costs."""

    indices: tuple[int, ...]  # positions in the stack
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Costs of the model, computed in one way: see `VariantKey`."""

    attention: Attention
    compute: Compute
    split: Split
    embedding: Part
    blocks: tuple[BlockKind, ...]
    head: Part
    loss: Loss = "whole"
    vocab_multiple: VocabMultiple = 1
    mlp_tiles: MlpTiles = 1

    @property
    def key(self) -> tuple[Attention, Compute, Split, Loss, VocabMultiple, MlpTiles]:
        """The fields of its `VariantKey`."""
        ends = (self.loss, self.vocab_multiple, self.mlp_tiles)
        return (self.attention, self.compute, self.split, *ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Traced costs of a model, for samples of `tokens` tokens."""

    model: str
    digest: str  # of all inputs of the trace: its name in the cache
    tokens: int  # of the longest sample
    depth: int  # blocks
    tied_parameters: int  # counted in both embedding and head; exist once if on one stage
    varied: bool = False  # samples differ in length, so freed memory has other sizes than needed
    lengths: tuple[int, ...] = ()  # ascending, at evenly spaced quantiles; empty if unknown
    row_tokens: int = 0  # maximum tokens of a row of packed samples
    variants: tuple[Variant, ...]
    work: ModelWork | None = None  # that any plan has to do; None if it could not be counted

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of a sample."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else float(self.tokens)

    def variant(
        self,
        attention: Attention,
        compute: Compute,
        split: Split,
        loss: Loss = "whole",
        vocab_multiple: VocabMultiple = 1,
        mlp_tiles: MlpTiles = 1,
    ) -> Variant:
        """Returns the variant of a `VariantKey`.

        Raises:
            KeyError: If it was not traced.
        """
        variants = {variant.key: variant for variant in self.variants}
        return variants[attention, compute, split, loss, vocab_multiple, mlp_tiles]
