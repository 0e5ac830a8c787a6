"""What a model costs, as tracing tells it: bytes, matmuls and traffic of each of its parts.

A footprint is a pure value: it is saved as JSON, and everything that is forecast follows from it by
arithmetic. `workers.tracing.trace` makes it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from search_spaces.plan import Attention

Compute = Literal["fp32", "autocast", "cast"]
"""How a pass computes: all in fp32; fp32 weights with 16-bit matmuls by autocast (DDP and one
rank); weights cast to 16 bits as a whole (FSDP2, DeepSpeed)."""
Split = Literal["none", "tensor", "sequence"]
"""Whether tensor ranks split a block, and the sequence between its matmuls too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A quantity as a function of the micro-batch b and the tensor degree t.

    It is fixed + per_sample * b + (split_fixed + split_per_sample * b) / t, in the unit of what it
    counts.
    """

    fixed: float = 0.0
    per_sample: float = 0.0
    split_fixed: float = 0.0
    split_per_sample: float = 0.0

    def at(self, micro_batch: Any, tensor: Any = 1) -> Any:
        """The quantity for numbers or for arrays of them, which broadcast."""
        whole = self.fixed + self.per_sample * micro_batch
        return whole + (self.split_fixed + self.split_per_sample * micro_batch) / tensor


ZERO = Extent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The largest of some quantities of one unit, and never below 0.

    What is largest at one sample, such as the gradient of a weight, need not be so at many.
    """

    lines: tuple[Extent, ...] = ()

    def at(self, micro_batch: Any, tensor: Any = 1) -> Any:
        """The quantity for numbers or for arrays of them, which broadcast."""
        values = (line.at(micro_batch, tensor) for line in self.lines)
        return functools.reduce(np.maximum, values, 0.0)


LOWEST = Peak()


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
    """`count` calls of one kernel that computes attention: sdpa or flash, forward or backward.

    `heads` counts query heads of all samples together; the two lengths are in tokens.
    """

    heads: Extent
    queries: Extent
    keys: Extent
    head_size: int
    causal: bool
    element_bytes: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a part does in one direction for one micro-batch.

    `traffic_bytes` is what all operators but matmuls and fused attention read and write,
    `launches` how many operators there are, those included. `exchanged_bytes` is what a tensor
    rank gives into collectives (an all-reduce counts its buffer once, as do an all-gather its
    result and a reduce-scatter its input), in `exchanges` calls. `transient_bytes` is the most that
    lives at once beside what is saved for backward before and after.
    """

    matmuls: tuple[Matmul, ...] = ()
    attentions: tuple[FusedAttention, ...] = ()
    traffic_bytes: Extent = ZERO
    launches: int = 0
    exchanged_bytes: Extent = ZERO
    exchanges: int = 0
    transient_bytes: Peak = LOWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The embedding, one block, or the head with its loss.

    Parameters are counts; a tensor rank holds `trained.at(0, t)` of them. `saved_bytes` is what
    forward keeps for backward, weights themselves apart (copies of them count); `kept_bytes` what
    selective recomputation keeps beside the part's input; `input_bytes` is the hidden states
    that the part receives, what full recomputation keeps. `recomputed` is what selective
    recomputation does again, full recomputation does all of `forward`.
    """

    trained: Extent
    frozen: Extent = ZERO
    saved_bytes: Extent = ZERO
    kept_bytes: Extent = ZERO
    input_bytes: Extent = ZERO
    forward: Pass = Pass()
    backward: Pass = Pass()
    recomputed: Pass = Pass()
    largest_weight: float = 0.0  # parameters of the largest single weight


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """Blocks that are alike; `indices` are their places in the stack."""

    indices: tuple[int, ...]
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The model under one attention, one way to compute and one way to split."""

    attention: Attention
    compute: Compute
    split: Split
    embedding: Part
    blocks: tuple[BlockKind, ...]
    head: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What tracing a model told, for samples of `tokens` tokens.

    `tied_parameters` are counted in the embedding and in the head and exist once in one stage.
    `varied` tells whether there are shorter samples too: memory is then given back in other sizes.
    `lengths` are then those of samples at evenly spaced quantiles, ascending (none if nobody knows
    them), and `row_tokens` is the most that a row of packed samples holds.
    """

    model: str
    digest: str  # of all that the trace depends on: the name under which it is cached
    tokens: int
    depth: int  # blocks
    tied_parameters: int
    varied: bool = False
    lengths: tuple[int, ...] = ()
    row_tokens: int = 0
    variants: tuple[Variant, ...]

    @property
    def mean_tokens(self) -> float:
        """Tokens of a sample in the mean."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else float(self.tokens)

    def variant(self, attention: Attention, compute: Compute, split: Split) -> Variant:
        """The variant of these.

        Raises:
            KeyError: If it was not traced.
        """
        for found in self.variants:
            if (found.attention, found.compute, found.split) == (attention, compute, split):
                return found
        raise KeyError((attention, compute, split))
