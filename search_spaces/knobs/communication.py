"""Knobs of a plan. How gradients and weights travel between data ranks."""

from __future__ import annotations

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
COMMUNICATION = (
    knob.Knob(
        name="bucket_mib",
        trades="fewer, larger reductions against an earlier start and smaller buffers",
        does="`torch`: sets `bucket_cap_mb` of DDP, or how much is averaged at a time where a"
        " schedule rules DDP out; `deepspeed`: sets `reduce_bucket_size` and"
        " `allgather_bucket_size`, limited to the size of the model",
        is_active=lambda chosen: knob.is_replicated(chosen) or knob.is_zero(chosen),
        active="with replicas of engine torch, or with engine deepspeed and zero_stage above 0",
        depends_on=knob.REPLICATED,
        label="bucket {}",
    ),
    knob.Knob(
        name="gradient_as_bucket_view",
        trades="true avoids a copy of the gradients: they live in the reduction buckets",
        does="sets DDP's argument of the same name",
        **_WITH_DDP,
        label="own gradients",
    ),
    knob.Knob(
        name="ddp_static_graph",
        trades="DDP learns in the first step which gradients come in which order, and looks no"
        " more; a model whose graph changes later fails",
        does="sets DDP's argument `static_graph`",
        **_WITH_DDP,
        forecast=False,
        label="static graph",
    ),
    knob.Knob(
        name="compression",
        trades="less gradient traffic against accuracy; powersgd also needs memory for its error"
        " feedback",
        does="registers DDP's communication hook",
        **_WITH_DDP,
        lossy=lambda value, _: value != "none",
        lossy_values="fp16, bf16, powersgd",
        label="send {}",
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
        engines="deepspeed",
        is_active=lambda chosen: knob.is_zero(chosen) and chosen["zero_stage"] == 3,
        active="with engine deepspeed and zero_stage 3",
        depends_on=knob.ZERO,
        label="prefetch {}",
    ),
    knob.Knob(
        name="prefetch_blocks",
        trades="weights that arrive in time where a block computes for less time than its weights"
        " travel, against memory for the blocks gathered ahead",
        does="has each block gather the weights of that many blocks after it in forward and before"
        " it in backward, by FSDP2's `set_modules_to_forward_prefetch` and"
        " `set_modules_to_backward_prefetch`; 0 leaves it to torch, which gathers one block ahead",
        engines="torch",
        is_active=lambda chosen: chosen["engine"] == "torch" and knob.is_sharded(chosen),
        active="with engine torch and zero_stage 2 or 3",
        depends_on=knob.ZERO,
        memory=1,
        label="{} blocks ahead",
    ),
    knob.Knob(
        name="reshard_ranks",
        trades="backward gathers weights from fewer ranks, such as those of a node, against memory"
        " for a larger share of all blocks until then",
        does="sets `reshard_after_forward` of FSDP2 to that number of ranks; 0 sets it to true",
        engines="torch",
        default=search_defaults.reshard_ranks,
        is_active=lambda chosen: chosen["engine"] == "torch" and chosen["zero_stage"] == 3,
        active="with engine torch and zero_stage 3",
        depends_on=(*knob.ZERO, "data", "tensor", "pipeline", "replicas"),
        label="kept on {} ranks",
    ),
    # Not searched by default: it wins only where the weights fit, but not with all activations, as
    # zero_stage 2 needs, and where gathers are not hidden; it would double the plans of stage 3.
    knob.Knob(
        name="gathered_between_passes",
        trades="one gather of all weights instead of two for each micro-batch but the first,"
        " against memory for all of them from backward to the next forward, which frees them block"
        " by block",
        does="calls `set_reshard_after_backward(False)` of FSDP2 before all backward passes of a"
        " step but the last, as zero_stage 2 does too",
        engines="torch",
        is_active=lambda chosen: chosen["engine"] == "torch" and chosen["zero_stage"] == 3,
        active="with engine torch and zero_stage 3",
        depends_on=knob.ZERO,
        memory=1,
        label="gathered between passes",
    ),
)
