"""What a forecast needs to know of a plan, as numbers: one row for each plan.

Plans become rows by `executions_of`; training runs of other software can be written as rows too, so
that forecasts are judged by what others measured.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.hardware.device import MatmulPrecision

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

# those whose peaks a device has
PRECISIONS: tuple[MatmulPrecision, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8")
STACKS = (
    "torch",
    "fsdp",
    "ddp",
    "hf",
    "deepspeed",
    "megatron",
    "megatron-core",
    "megatron-deepspeed",
    "jax",
    "other",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanFeatures:
    """Columns of one length.

    Bytes are those of one parameter. `weight_bytes` is held between steps, `gathered_bytes` is the
    copy in which blocks compute (0: they compute with what is held), `gradient_bytes` is held until
    the update for each trained parameter, `state_bytes` is the optimizer's with master weights,
    `reduced_bytes` is a gradient on its way between ranks.
    """

    # how the model is split
    tensor: Counts
    pipeline: Counts
    chunks: Counts  # stages on each rank of a pipeline
    gpipe: Flags
    data: Counts
    shards: Counts  # data ranks that split a state; the others hold replicas of it
    optimizer_sharded: Flags
    gradients_sharded: Flags
    weights_sharded: Flags
    regathered: Flags  # weights are gathered once more for backward
    first_blocks: Numbers  # blocks on the first rank of the pipeline,
    middle_blocks: Numbers  # on the fullest one between, 0 if there is none,
    last_blocks: Numbers  # and on the last one
    # a step
    micro_batch: Counts
    accumulation: Counts
    recomputed: Numbers  # share of blocks
    selective: Flags
    activations_on_host: Flags
    varied: Flags  # micro-batches differ in length
    filled: Numbers  # share of a micro-batch of longest samples that one computes in the mean
    # how it computes
    variant: Counts  # index into the footprint's variants
    precision: Counts  # index into PRECISIONS
    compiled: Flags
    fused: Flags  # operators between matmuls are fused by hand, as Megatron-LM has them
    # what is held and sent
    weight_bytes: Numbers
    gathered_bytes: Numbers
    gradient_bytes: Numbers
    state_bytes: Numbers
    reduced_bytes: Numbers
    frozen_bytes: Numbers  # of a frozen parameter
    buffer_bytes: Numbers  # communication buffers of a rank, in all
    update_bytes: Numbers  # of each trained parameter that a rank updates, while it does
    every_pass: Flags  # gradients are reduced after each micro-batch, not once a step
    overlapped: Flags  # data ranks talk while they compute
    # where it lies
    optimizer_on_host: Flags
    weights_on_host: Flags
    on_nvme: Flags
    # who runs it: index into STACKS
    stack: Counts

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: NDArray[Any]) -> Self:
        """These rows, in their order."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})


"""Who trains. `torch` is Plimsoll's own loop, whose allocations are those that were traced; `ddp`
any loop without sharding, `hf` the Trainer of transformers, `megatron-core` Megatron-LM with the
Transformer Engine, as NeMo has it."""


def concatenated(parts: list[PlanFeatures]) -> PlanFeatures:
    """The rows of all of them."""
    return PlanFeatures(
        **{
            f.name: np.concatenate([getattr(part, f.name) for part in parts])
            for f in fields(PlanFeatures)
        }
    )
