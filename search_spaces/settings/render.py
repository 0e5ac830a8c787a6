"""Settings of engine `torch` and of processes, rendered from a plan.

The worker applies these settings and every export writes them, so the exported plan is the one that
was measured. `deepspeed_config` renders those of engine `deepspeed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search_spaces.facts import ModelFacts
from search_spaces.plan import (
    Attention,
    Compression,
    Optimizer,
    Plan,
    Precision,
    Schedule,
)
from search_spaces.settings.checkpointing import (
    CheckpointSettings,
    render_checkpoint,
)
from search_spaces.settings.pipeline_partition import StageBlocks, partition_blocks

Wrapper = Literal["none", "ddp", "fsdp2"]
Environment = tuple[tuple[str, str], ...]  # names and values


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The blocks of each pipeline stage, and the schedule.

    Stage `index` is on rank `index % ranks` of the pipeline; the interleaved schedule has several
    stages per rank.
    """

    ranks: int
    schedule: Schedule
    stages: tuple[StageBlocks, ...]
    micro_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Settings of engine `torch` for a model.

    Attributes:
        reshard_after_forward: Only for FSDP2.
        sync_every_pass: Reduce gradients in each pass, not only in the last one of a step. FSDP2
            must, or it would hold whole gradients.
        offload: FSDP2 keeps weights, gradients and optimizer states in host memory.
        compute: Precision of forward and backward, by autocast for DDP and by the mixed-precision
            policy for FSDP2 (weights gathered in it, gradients reduced in fp32). Master weights and
            optimizer states are fp32 in both.
    """

    wrapper: Wrapper
    reshard_after_forward: bool
    replicas: int
    sync_every_pass: bool
    offload: bool
    pin_memory: bool
    tensor: int
    sequence_parallel: bool
    pipeline: PipelineSettings | None
    compute: Precision
    checkpoint: CheckpointSettings
    attention: Attention
    compile: bool
    optimizer: Optimizer
    bucket_mib: int
    gradient_as_bucket_view: bool
    compression: Compression


def render_torch(plan: Plan, model: ModelFacts) -> TorchSettings:
    """Renders the settings of a plan with engine `torch` for a model."""
    sharded = plan.zero_stage in (2, 3)
    wrapper: Wrapper = "fsdp2" if sharded else "ddp" if plan.data > 1 else "none"
    return TorchSettings(
        wrapper=wrapper,
        reshard_after_forward=plan.zero_stage == 3,
        replicas=plan.replicas,
        sync_every_pass=sharded,
        offload=plan.offload_parameters == "cpu",
        pin_memory=plan.pin_memory,
        tensor=plan.tensor,
        sequence_parallel=plan.sequence_parallel,
        pipeline=_pipeline(plan, model) if plan.pipeline > 1 else None,
        compute=plan.precision,
        checkpoint=render_checkpoint(plan, model.blocks),
        attention=plan.attention,
        compile=plan.compile,
        optimizer=plan.optimizer,
        bucket_mib=plan.bucket_mib,
        gradient_as_bucket_view=plan.gradient_as_bucket_view,
        compression=plan.compression,
    )


def render_environment(plan: Plan, device: str) -> Environment:
    """Returns the environment variables that the plan's processes must be started with.

    Allocators read their settings once, when a process starts, so plans with another environment
    need new workers.

    Args:
        plan: The plan.
        device: "cpu" or "cuda".

    Source:
        PYTORCH_ALLOC_CONF: torch's notes on CUDA memory management; MALLOC_MMAP_THRESHOLD_:
        mallopt(3).
    """
    if device == "cuda":
        settings = {
            "expandable_segments": "expandable_segments:True",
            "max_split": "max_split_size_mb:128",
        }.get(plan.allocator)
        if settings is None:
            return ()
        # torch before 2.10 knows only the second name
        return (("PYTORCH_ALLOC_CONF", settings), ("PYTORCH_CUDA_ALLOC_CONF", settings))
    return (("MALLOC_MMAP_THRESHOLD_", str(2**20)),) if plan.allocator == "mmap" else ()


def stages_per_rank(plan: Plan) -> int:
    """Returns the pipeline stages per rank: two if interleaved, for smaller bubbles."""
    return 2 if plan.pipeline_schedule == "interleaved" else 1


def _pipeline(plan: Plan, model: ModelFacts) -> PipelineSettings:
    stages = partition_blocks(
        model.block_parameters,
        stages=plan.pipeline * stages_per_rank(plan),
        before=model.embedding_parameters,
        after=model.head_parameters,
    )
    return PipelineSettings(
        ranks=plan.pipeline,
        schedule=plan.pipeline_schedule,
        stages=stages,
        micro_batches=plan.accumulation,
    )
