"""Knobs of a plan. How gradients and weights travel between data ranks."""

from collections.abc import Mapping
from typing import Any

from search_spaces.knobs import knob, search_defaults

_WITH_DDP: Mapping[str, Any] = {
    **{"engines": "torch", "is_active": knob.is_ddp, "active": "with DDP"},
    "depends_on": knob.DDP,
}
_WITH_ZERO: Mapping[str, Any] = {
    **{"engines": "deepspeed", "is_active": knob.is_zero, "depends_on": knob.ZERO},
    "active": "with engine deepspeed and zero_stage above 0",
}
_WITH_ZERO_3: Mapping[str, Any] = {
    **{"engines": "deepspeed", "depends_on": knob.ZERO},
    "is_active": lambda chosen: knob.is_zero(chosen) and chosen["zero_stage"] == 3,
    "active": "with engine deepspeed and zero_stage 3",
}
COMMUNICATION = (
    knob.Knob(
        name="bucket_mib",
        trades="fewer, larger reductions against an earlier start and smaller buffers",
        does="`torch`: `bucket_cap_mb` of DDP; `deepspeed`: `reduce_bucket_size` and"
        " `allgather_bucket_size`",
        is_active=lambda chosen: knob.is_replicated(chosen) or knob.is_zero(chosen),
        active="with replicas of engine torch, or with engine deepspeed and zero_stage above 0",
        depends_on=knob.REPLICATED,
        label="bucket {}",
    ),
    knob.Knob(
        name="gradient_as_bucket_view",
        trades="no copy of the gradients: they live in the reduction buckets",
        does="sets DDP's argument of the same name",
        **_WITH_DDP,
        label="own gradients",
    ),
    knob.Knob(
        name="ddp_static_graph",
        trades="DDP learns the order of gradients once; a model whose graph changes later fails",
        does="sets DDP's argument `static_graph`",
        **_WITH_DDP,
        forecast=False,
        label="static graph",
    ),
    knob.Knob(
        name="overlap",
        trades="reductions that overlap with backward, against a second buffer",
        does="sets `overlap_comm`",
        **_WITH_ZERO,
        label="no overlap",
    ),
    knob.Knob(
        name="contiguous_gradients",
        trades="no fragmentation, against one more buffer and copy",
        does="sets `contiguous_gradients`",
        **_WITH_ZERO,
        forecast=False,
        label="scattered gradients",
    ),
    knob.Knob(
        name="prefetch_mib",
        trades="weights that arrive in time, against memory for prefetched weights",
        does="sets `stage3_prefetch_bucket_size`, limited to the size of the model",
        **_WITH_ZERO_3,
        label="prefetch {}",
    ),
    knob.Knob(
        name="prefetch_blocks",
        trades="weights that arrive in time, against memory for blocks gathered ahead",
        does="FSDP2's `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`; 0:"
        " torch's default, one block",
        engines="torch",
        is_active=lambda chosen: chosen["engine"] == "torch" and knob.is_sharded(chosen),
        active="with engine torch and zero_stage 2 or 3",
        depends_on=knob.ZERO,
        memory=1,
        label="{} blocks ahead",
    ),
    knob.Knob(
        name="reshard_ranks",
        trades="backward gathers weights from fewer ranks, such as a node's, against memory for"
        " larger shares",
        does="FSDP2's `reshard_after_forward`, ZeRO++'s `zero_hpz_partition_size`; 0: all data"
        " ranks",
        default=search_defaults.reshard_ranks,
        is_active=lambda chosen: bool(chosen["zero_stage"] == 3),
        active="with zero_stage 3",
        depends_on=(*knob.ZERO, "data", "tensor", "pipeline", "replicas"),
        label="kept on {} ranks",
    ),
    # Not searched by default: it wins only where the weights fit, but not with all activations, as
    # zero_stage 2 needs, and where gathers are not hidden; it would double the plans of stage 3.
    knob.Knob(
        name="gathered_between_passes",
        trades="about half the gathers of a step, against memory for all weights between its"
        " passes",
        does="FSDP2's `set_reshard_after_backward(False)` for all micro-batches but the last",
        engines="torch",
        is_active=lambda chosen: chosen["engine"] == "torch" and chosen["zero_stage"] == 3,
        active="with engine torch and zero_stage 3",
        depends_on=knob.ZERO,
        memory=1,
        label="gathered between passes",
    ),
)
