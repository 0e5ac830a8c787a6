"""The section of a specification that says what is searched: a list of values for each knob."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from search_spaces.plan import (
    Allocator,
    Attention,
    Batching,
    CheckpointMode,
    Compression,
    Engine,
    Offload,
    Optimizer,
    Precision,
    Schedule,
    ZeroStage,
)
from search_spaces.spec.sections import Count, Section

Ratio = Annotated[float, Field(ge=0, le=1)]


class SpaceSpec(Section):
    """What is searched: a list of values for each knob; nothing takes Plimsoll's own choice."""

    accelerator: tuple[str, ...] | None = Field(
        default=None, description="kinds of nodes, of those in cluster.accelerators"
    )
    engine: tuple[Engine, ...] | None = Field(default=None, description="engines: torch, deepspeed")
    tensor: tuple[Count, ...] | None = Field(
        default=None, description="ranks that split each block (tensor parallelism)"
    )
    sequence_parallel: tuple[bool, ...] | None = Field(
        default=None,
        description="with tensor above 1: whether its ranks split the sequence between matmuls too",
    )
    pipeline: tuple[Count, ...] | None = Field(
        default=None, description="ranks that split the stack of blocks (pipeline parallelism)"
    )
    pipeline_schedule: tuple[Schedule, ...] | None = Field(
        default=None,
        description="order of the micro-batches in a pipeline: gpipe, 1f1b, interleaved",
    )
    data: tuple[Count, ...] | None = Field(
        default=None,
        description="data-parallel ranks; what cluster.workers leaves if this is not given",
    )
    zero_stage: tuple[ZeroStage, ...] | None = Field(
        default=None,
        description="torch: 0 DDP, 2 FSDP2 that keeps weights gathered until backward, 3 FSDP2;"
        " deepspeed: the stages of ZeRO",
    )
    replicas: tuple[Count, ...] | None = Field(
        default=None,
        description="hybrid shard of FSDP2: groups of data ranks that each hold a whole model",
    )
    micro_batch: tuple[Count, ...] | None = Field(
        default=None, description="samples per data rank and forward pass"
    )
    batching: tuple[Batching, ...] | None = Field(
        default=None, description="how samples are laid into batches: padded, grouped, packed"
    )
    checkpoint_ratio: tuple[Ratio, ...] | None = Field(
        default=None, description="shares of blocks that are recomputed in backward"
    )
    checkpoint_mode: tuple[CheckpointMode, ...] | None = Field(
        default=None,
        description="what is recomputed: full, or selective (matmul and attention outputs are"
        " kept)",
    )
    checkpoint_offload: tuple[bool, ...] | None = Field(
        default=None, description="whether what recomputed blocks keep lies in host memory"
    )
    offload_optimizer: tuple[Offload, ...] | None = Field(
        default=None,
        description="where optimizer states lie: none (the device), cpu, nvme (deepspeed)",
    )
    offload_parameters: tuple[Offload, ...] | None = Field(
        default=None,
        description="where weights lie that are not in use: none, cpu, nvme (deepspeed ZeRO-3)",
    )
    pin_memory: tuple[bool, ...] | None = Field(
        default=None, description="whether offloaded state lies in page-locked memory"
    )
    aio_block_kib: tuple[Count, ...] | None = Field(
        default=None, description="KiB of one request to NVMe"
    )
    aio_queue_depth: tuple[Count, ...] | None = Field(
        default=None, description="requests to NVMe under way in each thread"
    )
    aio_threads: tuple[Count, ...] | None = Field(
        default=None, description="threads of each rank that talk to NVMe"
    )
    attention: tuple[Attention, ...] | None = Field(
        default=None,
        description="attention implementations: sdpa, eager, flash_attention_2, flash_attention_3",
    )
    precision: tuple[Precision, ...] | None = Field(
        default=None,
        description="precisions; lossy, so that only train.precision is used if this is not given",
    )
    compile: tuple[bool, ...] | None = Field(
        default=None, description="whether each block goes through torch.compile"
    )
    optimizer: tuple[Optimizer, ...] | None = Field(
        default=None,
        description="implementations of the optimizer: adamw_fused, adamw_foreach; lossy:"
        " adamw_8bit, adafactor",
    )
    bucket_mib: tuple[Count, ...] | None = Field(
        default=None, description="MiB of gradients that are reduced together"
    )
    gradient_as_bucket_view: tuple[bool, ...] | None = Field(
        default=None, description="DDP: whether gradients lie in the buckets, not beside them"
    )
    compression: tuple[Compression, ...] | None = Field(
        default=None,
        description="DDP: what gradients are sent as: none; lossy: fp16, bf16, powersgd",
    )
    overlap: tuple[bool, ...] | None = Field(
        default=None, description="deepspeed: whether gradients are reduced during backward"
    )
    contiguous_gradients: tuple[bool, ...] | None = Field(
        default=None, description="deepspeed: whether gradients are copied into one buffer"
    )
    prefetch_mib: tuple[Count, ...] | None = Field(
        default=None, description="deepspeed ZeRO-3: MiB of weights that are fetched ahead"
    )
    loader_workers: tuple[Annotated[int, Field(ge=0, le=64)], ...] | None = Field(
        default=None, description="processes of each rank that prepare batches; 0: none"
    )
    loader_pin_memory: tuple[bool, ...] | None = Field(
        default=None, description="CUDA: whether batches lie in page-locked memory"
    )
    allocator: tuple[Allocator, ...] | None = Field(
        default=None,
        description="memory allocators: default; CUDA: expandable_segments, max_split; CPU: mmap",
    )

    @model_validator(mode="after")
    def _no_empty_lists(self) -> Self:
        empty = [name for name in type(self).model_fields if getattr(self, name) == ()]
        if empty:
            raise ValueError(f"{', '.join(empty)}: needs at least one value, or leave it out")
        return self
