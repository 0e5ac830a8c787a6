"""Knobs of a plan. What each rank holds: samples at once, recomputation, offload."""

from collections.abc import Mapping
from typing import Any

from search_spaces.knobs import knob, search_defaults
from search_spaces.knobs.search_defaults import CHECKPOINT_RATIOS

_CHECKPOINTED: Mapping[str, Any] = {
    "is_active": lambda chosen: chosen["checkpoint_ratio"] > 0,
    "active": "with checkpoint_ratio above 0",
    "depends_on": ("checkpoint_ratio",),
}
_MIXED: Mapping[str, Any] = {
    "is_active": lambda chosen: (
        chosen["checkpoint_ratio"] > 0
        and chosen["checkpoint_mode"] == "full"
        and not chosen["checkpoint_offload"]
    ),
    "active": "with checkpoint_mode full, without checkpoint_offload",
    "depends_on": ("checkpoint_ratio", "checkpoint_mode", "checkpoint_offload"),
}
MEMORY = (
    knob.Knob(
        name="micro_batch",
        trades="better device utilization against the activations of more samples at once",
        does="samples of a forward pass; gradients accumulate over the step",
        default=search_defaults.micro_batches,
        depends_on=("data", "context"),
        lossy=lambda value, spec: spec.train.micro_batch not in (None, value),
        lossy_values="all but `train.micro_batch`, if it is set",
        memory=1,
    ),
    knob.Knob(
        name="checkpoint_ratio",
        trades="less memory for activations against computing those blocks twice",
        does="recomputes that share of the blocks, spread evenly",
        default=lambda choice: CHECKPOINT_RATIOS if choice.model.blocks else (0.0,),
        memory=-1,
    ),
    knob.Knob(
        name="checkpoint_mode",
        trades="selective saves less memory and costs less time: it keeps the outputs of matmuls"
        " and attention kernels",
        does="torch's selective activation checkpointing",
        # it saves the outputs of matmuls, where a CPU spends its time
        default=lambda choice: ("full", "selective") if choice.accelerated else ("full",),
        **_CHECKPOINTED,
    ),
    knob.Knob(
        name="checkpoint_offload",
        trades="less device memory, against copies to the host and back",
        does="keeps what recomputed blocks save in host memory until backward",
        **_CHECKPOINTED,
    ),
    knob.Knob(
        name="selective_blocks",
        trades="as checkpoint_mode selective, for some blocks",
        does="`objective.memory_gib` finds their number",
        memory=1,
        **_MIXED,
    ),
    knob.Knob(
        name="offloaded_blocks",
        trades="as checkpoint_offload, for some blocks",
        does="`objective.memory_gib` finds their number",
        memory=-1,
        **_MIXED,
    ),
    knob.Knob(
        name="offload_optimizer",
        trades="less device memory for optimizer states, against updates on the CPU or reads from"
        " NVMe",
        does="`torch`: FSDP2's CPU offload, which moves weights too; `deepspeed`: ZeRO-Offload"
        " with its CPU Adam, and `cluster.nvme_folder`",
        default=search_defaults.optimizer_offloads,
        is_active=knob.is_sharded,
        active="if zero_stage shards states (torch: 2 or 3, deepspeed: 1 to 3)",
        depends_on=(*knob.ZERO, "data", "tensor", "pipeline"),
    ),
    knob.Knob(
        name="offload_parameters",
        trades="less device memory for weights, against copies before each use",
        does="`torch`: as for the optimizer; `deepspeed`: ZeRO-3 fetches weights from host memory"
        " or NVMe",
        default=search_defaults.parameter_offloads,
        is_active=knob.is_sharded,
        active="if zero_stage shards states (torch: 2 or 3, deepspeed: 1 to 3)",
        depends_on=(*knob.ZERO, "offload_optimizer"),
    ),
    knob.Knob(
        name="pin_memory",
        trades="faster copies, but host memory that cannot be swapped out",
        does="keeps offloaded state in page-locked memory",
        default=lambda choice: (choice.accelerated,),  # as both engines do
        is_active=lambda chosen: {chosen[name] for name in knob.OFFLOADS} != {"none"},
        active="if anything is offloaded",
        depends_on=knob.OFFLOADS,
        label="pinned",
    ),
)
