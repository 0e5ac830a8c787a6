"""From a plan to DeepSpeed's configuration: what the worker runs and what an export writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention, Optimizer, Plan, Precision
from search_spaces.settings.checkpointing import CheckpointSettings, render_checkpoint
from search_spaces.spec.schema import SweepSpec

MIB = 2**20
KIB = 2**10
FP16_FIRST_SCALE_POWER = 16  # torch.amp.GradScaler starts at 2**16 too,
FP16_GROWTH_STEPS = 2000  # doubles after so many steps,
FP16_HYSTERESIS = 1  # and halves at the first overflow
# DeepSpeed's own limits; smaller models get smaller ones, else they would stay gathered for good
MOST_PERSISTENT = 100_000  # parameters of one tensor
MOST_LIVE = 1_000_000_000  # parameters gathered at once
PERSISTENT_SHARE = 1_000  # a tensor below a thousandth of the model is not worth a message
NVME_BUFFERS = 5  # tensors in host memory on their way from and to NVMe
NVME_ALIGNMENT = 1024  # elements: a multiple of what direct input/output asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedSettings:
    """What engine `deepspeed` does to a model.

    `config_json` is DeepSpeed's own configuration, with sorted keys. The rest is done to the
    model beforehand, as under engine `torch`. With `host_optimizer` the optimizer's states lie
    in host memory (or go through it to NVMe) and the update runs on the host.
    """

    config_json: str
    zero_stage: int
    tensor: int
    compute: Precision
    checkpoint: CheckpointSettings
    attention: Attention
    compile: bool
    optimizer: Optimizer
    host_optimizer: bool

    @property
    def config(self) -> dict[str, Any]:
        """DeepSpeed's configuration; a new one at each call, since DeepSpeed writes into it."""
        config: dict[str, Any] = json.loads(self.config_json)
        return config


def render_deepspeed(
    plan: Plan, model: ModelFacts, spec: SweepSpec, device: str
) -> DeepSpeedSettings:
    """The settings of a plan of engine `deepspeed` for a model, on a device type.

    Raises:
        ValueError: If the plan offloads to NVMe and `cluster.nvme_folder` names no folder.
    """
    config: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "gradient_clipping": spec.train.grad_clip or 0.0,
        "zero_optimization": _zero(plan, model, spec, device),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
        "timers": {"throughput": {"enabled": False}},
    }
    if plan.tensor > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tensor}
    config |= _precision(plan)
    if "nvme" in (plan.offload_optimizer, plan.offload_parameters):
        config["aio"] = {
            "block_size": plan.aio_block_kib * KIB,
            "queue_depth": plan.aio_queue_depth,
            "intra_op_parallelism": plan.aio_threads,
            "single_submit": False,
            "overlap_events": True,
        }
    return DeepSpeedSettings(
        config_json=json.dumps(config, sort_keys=True),
        zero_stage=plan.zero_stage,
        tensor=plan.tensor,
        compute=plan.precision,
        checkpoint=render_checkpoint(plan, model.blocks),
        attention=plan.attention,
        compile=plan.compile,
        optimizer=plan.optimizer,
        host_optimizer=plan.offload_optimizer != "none",
    )


def _precision(plan: Plan) -> dict[str, Any]:
    if plan.precision == "bf16":
        return {"bf16": {"enabled": True}}
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
    """The section `zero_optimization`; sizes are counts of elements.

    Source:
        DeepSpeed's documentation, "ZeRO Optimizations for FP16 Training".
    """
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    if plan.zero_stage == 0:
        return zero
    element_bytes = 4 if plan.precision == "fp32" else 2
    bucket = max(min(plan.bucket_mib * MIB // element_bytes, model.parameters), 1)
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
            zero["offload_param"] |= {
                "buffer_count": NVME_BUFFERS,
                "buffer_size": _nvme_buffer(model, plan.data),
            }
    return zero


def _stage_3(plan: Plan, model: ModelFacts, element_bytes: int) -> dict[str, Any]:
    """What is gathered when: as little as FSDP2 does, a block and what is fetched ahead of it."""
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
    }


def _offload(where: str, pin: bool, spec: SweepSpec) -> dict[str, Any]:
    if where != "nvme":
        return {"device": where, "pin_memory": pin}
    folder = spec.cluster.nvme_folder
    if folder is None:
        raise ValueError("offload to nvme needs cluster.nvme_folder, a folder on each node's drive")
    return {"device": where, "pin_memory": pin, "nvme_path": folder}


def _largest_part(model: ModelFacts) -> int:
    """Parameters of the largest part that is gathered at once: a block, embedding or head."""
    parts = (*model.block_parameters, model.embedding_parameters, model.head_parameters)
    return max(parts, default=0) or model.parameters


def _nvme_buffer(model: ModelFacts, ranks: int) -> int:
    """Elements that hold a rank's shard of any one tensor."""
    shard = -(-_largest_part(model) // ranks)
    return (shard // NVME_ALIGNMENT + 1) * NVME_ALIGNMENT
