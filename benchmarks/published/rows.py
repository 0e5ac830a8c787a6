"""Published runs as rows of a forecast: what other software holds, gathers and sends."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from benchmarks.published.families import matmul_weights
from benchmarks.published.footprints import wanted_of
from benchmarks.published.values import Loss, Run
from search_spaces.costs.footprint import BlockKind, Extent, Footprint, Part, Pass, Peak, Variant
from search_spaces.costs.plan_features import PRECISIONS, STACKS, PlanFeatures

_DEEPSPEED_BUCKETS = 2e9  # bytes: 5e8 elements to reduce and as many to gather, in 16 bits
_MODERN = ("hopper", "blackwell")
_LATER = ("fsdp", "ddp", "hf", "deepspeed", "jax")  # overlap by default


def software_of(run: Run) -> tuple[bool, bool, Loss]:
    """Returns what of a footprint a run's software computes in its own way.

    The first value says whether ranks that split blocks split the loss over the vocabulary too, as
    Megatron-LM does (Shoeybi et al. 2019, arXiv:1909.08053, section 3) and torchtitan; the second,
    whether selective recomputation keeps every second product only, as torchtitan's
    (`_apply_ac_to_transformer_block` counts them); the third, how the loss is computed.
    """
    layout = run.layout
    fsdp = layout.engine == "fsdp"
    splits = (fsdp or layout.engine.startswith("megatron")) and layout.tensor > 1
    return splits, fsdp and layout.checkpoint_mode == "selective", layout.loss


def footprint_for(run: Run, footprint: Footprint) -> Footprint:
    """The footprint as a run's software computes it."""
    splits, halves, loss = software_of(run)

    def head(variant: Variant) -> Part:
        part = variant.head
        if loss != "plain":
            part = _fused_loss(part, linear=loss == "linear")
        return _split_loss(part) if splits and variant.split != "none" else part

    def blocks(variant: Variant) -> tuple[BlockKind, ...]:
        if not halves:
            return variant.blocks
        return tuple(replace(kind, part=_keeping_half(kind.part)) for kind in variant.blocks)

    variants = (
        replace(variant, head=head(variant), blocks=blocks(variant))
        for variant in footprint.variants
    )
    return replace(footprint, variants=tuple(variants))


def _keeping_half(block: Part) -> Part:
    return replace(block, kept_bytes=_scaled(block.kept_bytes, 0.5))


def _fused_loss(head: Part, *, linear: bool) -> Part:
    """A head whose logits turn into their gradient in place, or that never has whole logits.

    It keeps logits in 16 bits and their fp32 copy, or none; there is nothing beside.
    """
    logits = next((one for one in head.forward.matmuls), None)
    if logits is None:
        return head
    each = 0.0 if linear else logits.element_bytes + 4.0
    kept = _scaled(logits.rows, float(logits.columns.at(0, 1)) * each)
    rows = _plus(kept, head.input_bytes)
    return replace(
        head,
        saved_bytes=rows,
        forward=replace(head.forward, transient_bytes=Peak()),
        backward=replace(head.backward, transient_bytes=Peak()),
    )


def _scaled(extent: Extent, factor: float) -> Extent:
    return Extent(**{f.name: getattr(extent, f.name) * factor for f in fields(Extent)})


def _plus(one: Extent, other: Extent) -> Extent:
    return Extent(**{f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(Extent)})


def _split_loss(head: Part) -> Part:
    """A head whose logits stay split: nothing of them is gathered."""

    def split(extent: Extent) -> Extent:
        return Extent(
            split_fixed=extent.fixed + extent.split_fixed,
            split_per_sample=extent.per_sample + extent.split_per_sample,
        )

    def apart(found: Pass) -> Pass:
        return replace(
            found,
            traffic_bytes=split(found.traffic_bytes),
            transient_bytes=Peak(lines=tuple(map(split, found.transient_bytes.lines))),
            exchanged_bytes=head.input_bytes,
        )

    return replace(
        head,
        saved_bytes=split(head.saved_bytes),
        forward=apart(head.forward),
        backward=apart(head.backward),
    )


def executions_of(runs: Sequence[Run], footprint: Footprint) -> PlanFeatures:
    """Runs of one model as a forecast reads them.

    Raises:
        KeyError: If the footprint lacks a variant that one needs.
    """
    rows = [_row(run, footprint) for run in runs]
    return PlanFeatures(**{name: np.array([row[name] for row in rows]) for name in rows[0]})


def _row(run: Run, footprint: Footprint) -> dict[str, float | int | bool]:
    layout, states = run.layout, run.states
    sixteen = states.kind not in ("fp32", "tf32")
    stage = layout.zero_stage
    first, middle, last = _blocks(run)
    ranks = layout.data * layout.context
    shards = min(layout.shards, ranks) if stage else 1
    return {
        "tensor": max(layout.tensor, 1),
        "pipeline": layout.pipeline,
        "chunks": max(layout.chunks, 1),
        "gpipe": False,
        "v_shaped": False,
        "bubble": 1 / max(layout.chunks, 1),
        "even_in_flight": 0.0,
        "data": ranks,
        "shards": shards,
        "optimizer_sharded": stage >= 1,
        "gradients_sharded": stage >= 2,
        "weights_sharded": stage >= 3,
        "regathered": stage >= 3,
        "stays_gathered": stage < 3,
        "regather_ranks": shards,
        "context": layout.context,
        **_routing(run),
        "first_blocks": first,
        "middle_blocks": middle,
        "last_blocks": last,
        "micro_batch": layout.micro_batch / layout.context,
        "accumulation": layout.accumulation,
        "recomputed": layout.checkpoint_ratio if layout.checkpoint_mode != "none" else 0.0,
        "selective": layout.checkpoint_mode == "selective",
        "activations_on_host": layout.offload_activations,
        "varied": run.varied,
        "filled": 1.0,
        "longest_filled": 1.0,
        "variant": footprint.variants.index(footprint.variant(*wanted_of(run))),
        "precision": PRECISIONS.index("fp8" if states.kind == "nvfp4" else states.kind),
        "compiled": layout.compile,
        "own_loop": False,
        "fused": layout.fused_kernels or layout.engine in ("megatron", "megatron-deepspeed"),
        "weight_bytes": states.weight_bytes,
        "gathered_bytes": (2.0 if sixteen else 4.0) if stage >= 3 else 0.0,
        "gradient_bytes": states.gradient_bytes,
        "state_bytes": states.state_bytes,
        "reduced_bytes": min(max(states.gradient_bytes, 2.0), 4.0),
        "frozen_bytes": states.frozen_bytes,
        "buffer_bytes": _DEEPSPEED_BUCKETS if "deepspeed" in layout.engine and stage else 0.0,
        "update_bytes": states.weight_bytes if layout.engine in ("hf", "fsdp", "ddp") else 0.0,
        "every_pass": stage >= 2,
        "overlapped": layout.engine in _LATER or run.generation in _MODERN,
        "optimizer_on_host": layout.offload_optimizer,
        "weights_on_host": layout.offload_parameters,
        "on_nvme": layout.offload_nvme,
        "pinned": True,
        "stack": STACKS.index(_stack(run)),
    }


def _routing(run: Run) -> dict[str, float | int]:
    """Experts of a block, and the ranks that divide them."""
    shape, layout = run.shape, run.layout
    if shape.experts == 1:
        return {"experts": 1, "expert_share": 0.0, "expert_layers": 0.0, "routed": 0.0}
    held = matmul_weights(shape, of_all_experts=True) - shape.vocab * shape.hidden
    dense = matmul_weights(replace(shape, per_token=0)) - shape.vocab * shape.hidden
    return {
        "experts": layout.experts,
        "expert_share": 1 - dense / held,
        "expert_layers": 1.0,
        "routed": float(shape.per_token),
    }


def _stack(run: Run) -> str:
    """Megatron-LM on devices of 2022 and later comes with the Transformer Engine."""
    engine = run.layout.engine
    if engine == "megatron" and run.generation in _MODERN:
        return "megatron-core"
    return engine if engine in STACKS else "other"


def _blocks(run: Run) -> tuple[float, float, float]:
    """Blocks on the first rank of a pipeline, on the fullest between and on the last."""
    depth, pipeline = run.shape.layers, run.layout.pipeline
    if pipeline == 1:
        return depth, 0.0, depth
    if len(run.stages) > 1:
        held = [stage.share * depth for stage in run.stages]
        return held[0], max(held[1:-1], default=0.0), held[-1]
    each = depth / pipeline
    return each, each if pipeline > 2 else 0.0, each
