"""Knobs of a plan. How gradients and weights travel between data ranks."""

from collections.abc import Mapping
from typing import Any

from search_spaces.knobs import knob, search_defaults

_WITH_DDP: Mapping[str, Any] = {"is_active": knob.is_ddp, "depends_on": knob.DDP}
_WITH_ZERO: Mapping[str, Any] = {"is_active": knob.is_zero, "depends_on": knob.ZERO}
_WITH_ZERO_3: Mapping[str, Any] = {
    "is_active": lambda chosen: knob.is_zero(chosen) and chosen["zero_stage"] == 3,
    "depends_on": knob.ZERO,
}
COMMUNICATION = (
    knob.Knob(
        name="bucket_mib",
        is_active=lambda chosen: knob.is_replicated(chosen) or knob.is_zero(chosen),
        depends_on=knob.REPLICATED,
        label="bucket {}",
    ),
    knob.Knob(name="gradient_as_bucket_view", **_WITH_DDP, label="own gradients"),
    knob.Knob(name="ddp_static_graph", **_WITH_DDP, forecast=False, label="static graph"),
    knob.Knob(name="overlap", **_WITH_ZERO, label="no overlap"),
    knob.Knob(
        name="contiguous_gradients", **_WITH_ZERO, forecast=False, label="scattered gradients"
    ),
    knob.Knob(name="prefetch_mib", **_WITH_ZERO_3, label="prefetch {}"),
    knob.Knob(
        name="prefetch_blocks",
        is_active=lambda chosen: chosen["engine"] == "torch" and knob.is_sharded(chosen),
        depends_on=knob.ZERO,
        memory=1,
        label="{} blocks ahead",
    ),
    knob.Knob(
        name="reshard_ranks",
        default=search_defaults.reshard_ranks,
        is_active=lambda chosen: bool(chosen["zero_stage"] == 3),
        depends_on=(*knob.ZERO, "data", "tensor", "pipeline", "replicas"),
        label="kept on {} ranks",
    ),
    # Not searched by default: it wins only where the weights fit, but not with all activations, as
    # zero_stage 2 needs, and where gathers are not hidden; it would double the plans of stage 3.
    knob.Knob(
        name="gathered_between_passes",
        is_active=lambda chosen: chosen["engine"] == "torch" and chosen["zero_stage"] == 3,
        depends_on=knob.ZERO,
        memory=1,
        label="gathered between passes",
    ),
)
