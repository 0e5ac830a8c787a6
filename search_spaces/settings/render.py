"""Settings of engine `torch` and of processes, rendered from a plan.

The worker applies these settings and every export writes them, so the exported plan is the one that
was measured. `deepspeed_config` renders those of engine `deepspeed`.
"""

from dataclasses import dataclass

from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan, Precision, Schedule, States
from search_spaces.settings.blocks import BlockSettings, render_blocks
from search_spaces.settings.optimizer import Kind, kind_of
from search_spaces.settings.pipeline_partition import StageBlocks, model_stages
from search_spaces.settings.schedules import SCHEDULES

Environment = tuple[tuple[str, str], ...]  # names and values


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The blocks of each pipeline stage, and the schedule, whose shape says where stages are.

    Attributes:
        ranks: Of the pipeline.
        schedule: See `SCHEDULES`.
        stages: Blocks of each stage, in the order of the model.
        micro_batches: Of a step.
        average_mib: Gradients are averaged over the data ranks after the last backward pass, so
            many MiB at a time; None where DDP or FSDP2 does it, or one rank has all data.
    """

    ranks: int
    schedule: Schedule
    stages: tuple[StageBlocks, ...]
    micro_batches: int
    average_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpSettings:
    """Arguments of `replicate` (`workers/plain_torch/data_parallel.py`)."""

    bucket_mib: int
    gradient_as_bucket_view: bool
    find_unused_weights: bool
    static_graph: bool
    compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp2Settings:
    """Arguments of `shard` (`workers/plain_torch/data_parallel.py`)."""

    compute: Precision
    reshard_after_forward: bool | int
    offload: bool
    pin_memory: bool
    prefetch_blocks: int
    reduce: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Settings of engine `torch` for a model.

    Attributes:
        ddp: Replicas; None without them.
        fsdp2: Sharding over the data ranks; None without it.
        compute: Precision of forward and backward, by autocast for DDP and by the mixed-precision
            policy for FSDP2 (weights gathered in it, gradients reduced in fp32).
        states: Type of weights, gradients and optimizer states; with bf16 nothing is cast, and
            gradients are reduced in it too.
        gathered_between_passes: FSDP2's weights stay gathered from one micro-batch of a step to the
            next: argument `keep_gathered` of `gradient_sync`.
    """

    ddp: DdpSettings | None
    fsdp2: Fsdp2Settings | None
    gathered_between_passes: bool
    replicas: int
    tensor: int
    sequence_parallel: bool
    pipeline: PipelineSettings | None
    compute: Precision
    states: States
    blocks: BlockSettings
    optimizer_kind: Kind

    @property
    def autocast(self) -> Precision:
        """Precision of autocast; FSDP2 sets the precision itself, and bf16 weights are in it."""
        return "fp32" if self.fsdp2 is not None or self.states != "fp32" else self.compute


def render_torch(plan: Plan, model: ModelFacts) -> TorchSettings:
    """Renders the settings of a plan with engine `torch` for a model."""
    sharded = plan.zero_stage in (2, 3)
    replicated = plan.data > 1 and not sharded
    return TorchSettings(
        ddp=_ddp(plan, model) if replicated and not averages_after_step(plan) else None,
        fsdp2=_fsdp2(plan) if sharded else None,
        gathered_between_passes=plan.zero_stage == 2 or plan.gathered_between_passes,
        replicas=plan.replicas,
        tensor=plan.tensor,
        sequence_parallel=plan.sequence_parallel,
        pipeline=_pipeline(plan, model) if plan.pipeline > 1 else None,
        compute=plan.precision,
        states=plan.states,
        blocks=render_blocks(plan, model.blocks),
        optimizer_kind=kind_of(plan),
    )


def _ddp(plan: Plan, model: ModelFacts) -> DdpSettings:
    return DdpSettings(
        bucket_mib=plan.bucket_mib,
        gradient_as_bucket_view=plan.gradient_as_bucket_view,
        find_unused_weights=model.has_unused_weights and plan.pipeline == 1,
        static_graph=plan.ddp_static_graph,
        compiled=plan.compile,
    )


def _fsdp2(plan: Plan) -> Fsdp2Settings:
    return Fsdp2Settings(
        compute=plan.precision,
        reshard_after_forward=(plan.reshard_ranks or True) if plan.zero_stage == 3 else False,
        offload=plan.offload_parameters == "cpu",
        pin_memory=plan.pin_memory,
        prefetch_blocks=plan.prefetch_blocks,
        reduce="fp32" if plan.states == "fp32" else plan.precision,
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


def averages_after_step(plan: Plan) -> bool:
    """Returns whether the engine itself averages gradients of replicas, once a step.

    DDP hears of a gradient by a hook of `backward`, which a schedule that computes the gradients of
    weights apart does not call.

    Source:
        torch/distributed/pipelining/_backward.py, stage_backward_weight (torch 2.13).
    """
    return plan.pipeline > 1 and SCHEDULES[plan.pipeline_schedule].splits_backward


def _pipeline(plan: Plan, model: ModelFacts) -> PipelineSettings:
    stages = plan.pipeline * SCHEDULES[plan.pipeline_schedule].stages_per_rank
    return PipelineSettings(
        ranks=plan.pipeline,
        schedule=plan.pipeline_schedule,
        stages=model_stages(model, stages),
        micro_batches=plan.accumulation,
        average_mib=plan.bucket_mib if averages_after_step(plan) and plan.data > 1 else None,
    )
