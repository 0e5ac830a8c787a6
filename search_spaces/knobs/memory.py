"""Knobs of a plan. What each rank holds: samples at once, recomputation, offload."""

from collections.abc import Mapping
from typing import Any

from search_spaces.knobs import knob, search_defaults
from search_spaces.knobs.search_defaults import CHECKPOINT_RATIOS

_CHECKPOINTED: Mapping[str, Any] = {
    "is_active": lambda chosen: chosen["checkpoint_ratio"] > 0,
    "depends_on": ("checkpoint_ratio",),
}
_MIXED: Mapping[str, Any] = {
    "is_active": lambda chosen: (
        chosen["checkpoint_ratio"] > 0
        and chosen["checkpoint_mode"] == "full"
        and not chosen["checkpoint_offload"]
    ),
    "depends_on": ("checkpoint_ratio", "checkpoint_mode", "checkpoint_offload"),
}
MEMORY = (
    knob.Knob(
        name="micro_batch",
        default=search_defaults.micro_batches,
        depends_on=("data", "context"),
        lossy=lambda value, spec: spec.train.micro_batch not in (None, value),
        memory=1,
    ),
    knob.Knob(
        name="checkpoint_ratio",
        default=lambda choice: CHECKPOINT_RATIOS if choice.model.blocks else (0.0,),
        memory=-1,
    ),
    knob.Knob(
        name="checkpoint_mode",
        # it saves the outputs of matmuls, where a CPU spends its time
        default=lambda choice: ("full", "selective") if choice.accelerated else ("full",),
        **_CHECKPOINTED,
    ),
    knob.Knob(name="checkpoint_offload", **_CHECKPOINTED),
    knob.Knob(name="selective_blocks", memory=1, **_MIXED),
    knob.Knob(name="offloaded_blocks", memory=-1, **_MIXED),
    knob.Knob(
        name="offload_optimizer",
        default=search_defaults.optimizer_offloads,
        is_active=knob.is_sharded,
        depends_on=(*knob.ZERO, "data", "tensor", "pipeline"),
    ),
    knob.Knob(
        name="offload_parameters",
        default=search_defaults.parameter_offloads,
        is_active=knob.is_sharded,
        depends_on=(*knob.ZERO, "offload_optimizer"),
    ),
    knob.Knob(
        name="pin_memory",
        default=lambda choice: (choice.accelerated,),  # as both engines do
        is_active=lambda chosen: {chosen[name] for name in knob.OFFLOADS} != {"none"},
        depends_on=knob.OFFLOADS,
        label="pinned",
    ),
)
