"""Features of plans as numbers, the input of a forecast: one row for each plan.

`plan_encoding.plan_features` makes the rows of plans. Training runs of other software can be
encoded too, so that forecasts can be compared with published measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.hardware.device import MatmulPrecision

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

# precisions with a peak in `Device`
PRECISIONS: tuple[MatmulPrecision, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8")
STACKS = (
    *("torch", "fsdp", "ddp", "hf", "deepspeed", "megatron", "megatron-core"),
    *("megatron-deepspeed", "jax", "other"),
)
"""Training software. `torch` is Plimsoll's own loop, whose allocations are traced; `ddp` is any
loop without sharding, `hf` the Trainer of transformers, `megatron-core` Megatron-LM with the
Transformer Engine, as in NeMo."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AbstractColumns:
    """Columns of equal length, a row for each plan, case or kernel."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """Returns these rows, in their order."""
        return replace(self, **{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Returns the rows of all parts, one part after the other."""
        columns = {one.name: [getattr(part, one.name) for part in parts] for one in fields(cls)}
        return cls(**{name: np.concatenate(column) for name, column in columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanFeatures(AbstractColumns):
    """Columns of equal length; bytes are per parameter unless the field says otherwise."""

    # parallelism
    tensor: Counts
    pipeline: Counts
    chunks: Counts  # stages per rank of a pipeline
    gpipe: Flags
    v_shaped: Flags  # the first rank of the pipeline has the last stage too
    bubble: Numbers  # time that a rank waits, as a share of the same for 1F1B
    even_in_flight: Numbers  # micro-batches in flight if on all ranks alike; else 0
    data: Counts
    shards: Counts  # data ranks that shard a state; the others hold replicas of it
    optimizer_sharded: Flags
    gradients_sharded: Flags
    weights_sharded: Flags
    regathered: Flags  # weights are gathered once more for backward
    stays_gathered: Flags  # weights are gathered for one forward pass of a step, not for each
    regather_ranks: Counts  # ranks that backward gathers them from: all shards, or reshard_ranks
    context: Counts  # neighbouring data ranks that divide the tokens of their samples
    experts: Counts  # neighbouring data ranks that divide the experts of each layer
    expert_share: Numbers  # of a block's parameters
    expert_layers: Numbers  # of a block
    routed: Numbers  # copies of a hidden state that a block sends to experts
    first_blocks: Numbers  # blocks on the first rank of the pipeline
    middle_blocks: Numbers  # blocks on the fullest middle rank; 0 if there is none
    last_blocks: Numbers  # blocks on the last rank
    # a step
    micro_batch: Numbers  # mean samples of a micro-batch
    accumulation: Numbers  # mean micro-batches of a step
    recomputed: Numbers  # share of blocks
    selective: Numbers  # share of these
    activations_on_host: Numbers  # share of these
    varied: Flags  # micro-batches differ in length
    filled: Numbers  # mean work of a micro-batch over that of one with only the longest samples
    longest_filled: Numbers  # tokens of the largest micro-batch over those of the longest samples
    # computation
    variant: Counts  # index into the footprint's variants
    precision: Counts  # index into PRECISIONS
    compiled: Flags
    fused: Flags  # operators between matmuls are fused by hand, as in Megatron-LM
    own_loop: Flags  # Plimsoll's: compiles blocks, and torch chooses the kernel of attention
    # memory and communication
    weight_bytes: Numbers  # held between steps
    gathered_bytes: Numbers  # the copy in which blocks compute; 0: they compute with what is held
    gradient_bytes: Numbers  # held until the update, per trained parameter
    state_bytes: Numbers  # of the optimizer, including master weights
    reduced_bytes: Numbers  # of a gradient during communication
    frozen_bytes: Numbers  # per frozen parameter
    buffer_bytes: Numbers  # all communication buffers of a rank
    update_bytes: Numbers  # during the update, per trained parameter that the rank updates
    every_pass: Flags  # gradients are reduced after each micro-batch, not once per step
    overlapped: Flags  # data ranks communicate while they compute
    # offload
    optimizer_on_host: Flags
    weights_on_host: Flags
    on_nvme: Flags
    pinned: Flags
    # training software: index into STACKS
    stack: Counts
