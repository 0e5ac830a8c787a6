"""DeepSpeed's configuration, rendered from a plan for the worker and every export."""

import json
from dataclasses import dataclass
from typing import Any

from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan, Precision
from search_spaces.settings.blocks import BlockSettings, render_blocks
from search_spaces.settings.optimizer import Kind, kind_of
from search_spaces.specification.schema import SweepSpec

MIB = 2**20
# the loss scale of torch.amp.GradScaler: starts at 2**16, doubles after 2,000 steps without an
# overflow, and halves at the first one
FP16_FIRST_SCALE_POWER = 16
FP16_GROWTH_STEPS = 2000
FP16_HYSTERESIS = 1
# DeepSpeed's own limits; smaller models get smaller ones, else they would always stay gathered
MOST_PERSISTENT = 100_000  # parameters of one tensor
MOST_LIVE = 1_000_000_000  # parameters gathered at once
PERSISTENT_SHARE = 1_000  # a tensor below a thousandth of the model is not worth a message
NVME_BUFFERS = 5  # tensors in host memory on their way to and from NVMe
NVME_ALIGNMENT = 1024  # elements: a multiple of what direct I/O requires


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedSettings:
    """Settings of engine `deepspeed` for a model.

    `config_json` is DeepSpeed's own configuration. The other settings apply to the model before
    DeepSpeed wraps it, as with engine `torch`.
    """

    config_json: str  # with sorted keys
    zero_stage: int
    compute: Precision
    blocks: BlockSettings
    optimizer_kind: Kind
    host_optimizer: bool  # states are in host memory (or pass through it to NVMe), updated there

    @property
    def config(self) -> dict[str, Any]:
        """DeepSpeed's configuration; a new copy on each access, since DeepSpeed modifies it."""
        config: dict[str, Any] = json.loads(self.config_json)
        return config


def render_deepspeed(
    plan: Plan, model: ModelFacts, spec: SweepSpec, device: str
) -> DeepSpeedSettings:
    """Renders the settings of a plan with engine `deepspeed`.

    Args:
        plan: The plan.
        model: Facts about the model.
        spec: The specification.
        device: "cpu" or "cuda".
    """
    # a step that tokens limit may have a pass for each sample
    samples = 1 if plan.micro_batch_tokens else plan.micro_batch
    config: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": samples,
        "gradient_accumulation_steps": plan.micro_batch * plan.accumulation // samples,
        "gradient_clipping": spec.train.grad_clip or 0.0,
        "zero_optimization": _zero(plan, model, spec, device),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
        "timers": {"throughput": {"enabled": False}},
    }
    config |= _precision(plan)
    return DeepSpeedSettings(
        config_json=json.dumps(config, sort_keys=True),
        zero_stage=plan.zero_stage,
        compute=plan.precision,
        blocks=render_blocks(plan, model.blocks),
        optimizer_kind=kind_of(plan),
        host_optimizer=plan.offload_optimizer != "none",
    )


def _precision(plan: Plan) -> dict[str, Any]:
    if plan.precision == "bf16":
        if plan.states == "fp32":
            return {"bf16": {"enabled": True}}
        held = dict.fromkeys(("bf16_master_weights_and_grads", "bf16_optimizer_states"), True)
        return {"bf16": {"enabled": True, **held}}
    if plan.precision == "fp16":
        return {
            "fp16": {
                "enabled": True,
                "loss_scale": 0,  # dynamic
                "initial_scale_power": FP16_FIRST_SCALE_POWER,
                "loss_scale_window": FP16_GROWTH_STEPS,
                "hysteresis": FP16_HYSTERESIS,
            }
        }
    return {}


def _zero(plan: Plan, model: ModelFacts, spec: SweepSpec, device: str) -> dict[str, Any]:
    """Returns the section `zero_optimization`; sizes are counts of elements.

    Source:
        DeepSpeed's documentation, "ZeRO Optimizations for FP16 Training".
    """
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    if plan.zero_stage == 0:
        return zero
    element_bytes = 4 if plan.precision == "fp32" else 2
    bucket = min(plan.bucket_mib * MIB // element_bytes, model.parameters)
    bucket = max(bucket + bucket % 2, 2)  # even, which ZeRO 1 and 2 insist on
    zero |= {
        "contiguous_gradients": plan.contiguous_gradients,
        "overlap_comm": plan.overlap,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if plan.zero_stage == 3:
        zero |= _stage_3(plan, model, element_bytes)
    pin = plan.pin_memory and device == "cuda"
    if plan.offload_optimizer != "none":
        zero["offload_optimizer"] = _offload(plan.offload_optimizer, pin, spec)
    if plan.offload_parameters != "none":
        zero["offload_param"] = _offload(plan.offload_parameters, pin, spec)
        if plan.offload_parameters == "nvme":
            shard = -(-_largest_part(model) // plan.data)  # a rank's shard of any tensor
            size = (shard // NVME_ALIGNMENT + 1) * NVME_ALIGNMENT
            zero["offload_param"] |= {"buffer_count": NVME_BUFFERS, "buffer_size": size}
    return zero


def _stage_3(plan: Plan, model: ModelFacts, element_bytes: int) -> dict[str, Any]:
    """Returns the settings of ZeRO-3, which gather as little as FSDP2: a block and its prefetch."""
    prefetch = min(plan.prefetch_mib * MIB // element_bytes, model.parameters)
    live = min(_largest_part(model) + prefetch, MOST_LIVE)
    return {
        "stage3_prefetch_bucket_size": prefetch,
        "stage3_param_persistence_threshold": min(
            MOST_PERSISTENT, model.parameters // PERSISTENT_SHARE
        ),
        "stage3_max_live_parameters": live,
        "stage3_max_reuse_distance": live,
        "sub_group_size": max(min(model.trainable_parameters, MOST_LIVE), 1),
        **({"zero_hpz_partition_size": plan.reshard_ranks} if plan.reshard_ranks else {}),
    }


def _offload(where: str, pin: bool, spec: SweepSpec) -> dict[str, Any]:
    if where != "nvme":
        return {"device": where, "pin_memory": pin}
    return {"device": where, "pin_memory": pin, "nvme_path": spec.cluster.nvme_folder}


def _largest_part(model: ModelFacts) -> int:
    parts = (*model.block_parameters, model.embedding_parameters, model.head_parameters)
    return max(parts, default=0) or model.parameters
