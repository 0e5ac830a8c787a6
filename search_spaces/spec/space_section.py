"""The `space` section of a specification: the values of each knob to search."""

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
    """Values to search, a list for each knob; Plimsoll chooses for knobs that are unset."""

    accelerator: tuple[str, ...] | None = Field(
        default=None, description="kinds of nodes, from cluster.accelerators"
    )
    engine: tuple[Engine, ...] | None = Field(default=None, description="engines: torch, deepspeed")
    tensor: tuple[Count, ...] | None = Field(
        default=None, description="ranks that split each block (tensor parallelism)"
    )
    sequence_parallel: tuple[bool, ...] | None = Field(
        default=None,
        description="with tensor above 1: also split the sequence between matmuls",
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
        description="data-parallel ranks; if unset, all of cluster.workers that tensor and pipeline"
        " leave",
    )
    zero_stage: tuple[ZeroStage, ...] | None = Field(
        default=None,
        description="torch: 0 is DDP, 2 is FSDP2 that keeps weights gathered until backward, 3 is"
        " FSDP2; deepspeed: the ZeRO stage",
    )
    replicas: tuple[Count, ...] | None = Field(
        default=None,
        description="FSDP2 hybrid sharding: groups of data ranks that each hold a whole model",
    )
    micro_batch: tuple[Count, ...] | None = Field(
        default=None, description="samples per data rank and forward pass"
    )
    batching: tuple[Batching, ...] | None = Field(
        default=None, description="how samples are arranged in batches: padded, grouped, packed"
    )
    checkpoint_ratio: tuple[Ratio, ...] | None = Field(
        default=None, description="share of the blocks to recompute in backward"
    )
    checkpoint_mode: tuple[CheckpointMode, ...] | None = Field(
        default=None,
        description="what to recompute in a block: full (all of it), or selective (all but matmul"
        " and attention outputs)",
    )
    checkpoint_offload: tuple[bool, ...] | None = Field(
        default=None, description="keep the saved tensors of recomputed blocks in host memory"
    )
    offload_optimizer: tuple[Offload, ...] | None = Field(
        default=None,
        description="where optimizer states are kept: none (the device), cpu, nvme (deepspeed)",
    )
    offload_parameters: tuple[Offload, ...] | None = Field(
        default=None,
        description="where weights are kept while not in use: none (the device), cpu, nvme"
        " (deepspeed ZeRO-3)",
    )
    pin_memory: tuple[bool, ...] | None = Field(
        default=None, description="keep offloaded state in page-locked memory"
    )
    aio_block_kib: tuple[Count, ...] | None = Field(
        default=None, description="KiB per NVMe request"
    )
    aio_queue_depth: tuple[Count, ...] | None = Field(
        default=None, description="NVMe requests in flight per thread"
    )
    aio_threads: tuple[Count, ...] | None = Field(
        default=None, description="threads per rank for NVMe requests"
    )
    attention: tuple[Attention, ...] | None = Field(
        default=None,
        description="attention implementations: sdpa, eager, flash_attention_2, flash_attention_3",
    )
    precision: tuple[Precision, ...] | None = Field(
        default=None,
        description="precisions to compute in; lossy, so if unset only train.precision is used",
    )
    compile: tuple[bool, ...] | None = Field(
        default=None, description="compile each block with torch.compile"
    )
    optimizer: tuple[Optimizer, ...] | None = Field(
        default=None,
        description="optimizer implementations: adamw_fused, adamw_foreach; lossy: adamw_8bit,"
        " adafactor",
    )
    bucket_mib: tuple[Count, ...] | None = Field(
        default=None, description="MiB of gradients to reduce together"
    )
    gradient_as_bucket_view: tuple[bool, ...] | None = Field(
        default=None, description="DDP: make gradients views of the buckets, instead of copies"
    )
    compression: tuple[Compression, ...] | None = Field(
        default=None,
        description="DDP: compression of gradients for the all-reduce: none; lossy: fp16, bf16,"
        " powersgd",
    )
    overlap: tuple[bool, ...] | None = Field(
        default=None, description="deepspeed: reduce gradients during backward"
    )
    contiguous_gradients: tuple[bool, ...] | None = Field(
        default=None, description="deepspeed: copy gradients into one buffer"
    )
    prefetch_mib: tuple[Count, ...] | None = Field(
        default=None, description="deepspeed ZeRO-3: MiB of weights to prefetch"
    )
    loader_workers: tuple[Annotated[int, Field(ge=0, le=64)], ...] | None = Field(
        default=None, description="processes per rank that prepare batches; 0: the rank itself does"
    )
    loader_pin_memory: tuple[bool, ...] | None = Field(
        default=None, description="CUDA: put batches in page-locked memory"
    )
    allocator: tuple[Allocator, ...] | None = Field(
        default=None,
        description="memory allocators: default; CUDA: expandable_segments, max_split; CPU: mmap",
    )

    @model_validator(mode="after")
    def _no_empty_lists(self) -> Self:
        empty = [name for name in type(self).model_fields if getattr(self, name) == ()]
        if empty:
            raise ValueError(f"{', '.join(empty)}: give at least one value, or remove the key")
        return self
