"""Encoding of plans as features: bytes that each engine holds, gathers and sends.

Sources: torch's `fully_shard` and `DistributedDataParallel`; Rajbhandari et al. 2020,
arXiv:1910.02054, for ZeRO; `search_spaces.settings.render` for what a plan sets.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.costs.footprint import Compute, Footprint, Split
from search_spaces.costs.plan_features import (
    PRECISIONS,
    STACKS,
    Counts,
    Flags,
    Numbers,
    PlanFeatures,
)
from search_spaces.costs.sequence_packing import fill_ratios, largest_fill, mean_passes
from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention, Loss, MlpTiles, VocabMultiple
from search_spaces.plan_table import PlanTable
from search_spaces.settings.blocks import checkpointed_blocks
from search_spaces.settings.deepspeed_config import MOST_LIVE
from search_spaces.settings.pipeline_partition import model_stages
from search_spaces.settings.schedules import SCHEDULES, ScheduleShape

MIB = 2**20
# optimizer bytes per trained parameter; 8-bit: two moments and their scales, an fp32 pair for each
# 256 parameters (Dettmers et al. 2021, arXiv:2110.02861); Adafactor: a row and a column
# paged ones move to the host where the device has no room for them
_MOMENT_BYTES = {"adamw_fused": 8.0, "adamw_foreach": 8.0, "adamw_8bit": 2.04, "adafactor": 0.01}
_MOMENT_BYTES["adamw_8bit_paged"] = 0.0
# during the update: foreach has temporaries of all weights, Adafactor of one weight at a time
_UPDATE_BYTES = dict.fromkeys(_MOMENT_BYTES, 0.0) | {"adamw_foreach": 4.0}
_OWN = ("sgd", "lion", "muon", "custom")  # whose bytes are facts: see `OptimizerFacts`
_PRECISION_CODES = {name: float(PRECISIONS.index(name)) for name in ("fp32", "bf16", "fp16")}


class VariantKey(NamedTuple):
    """A variant of a footprint: the arguments of `Footprint.variant`."""

    attention: Attention
    compute: Compute
    split: Split
    loss: Loss = "whole"
    vocab_multiple: VocabMultiple = 1
    mlp_tiles: MlpTiles = 1


def variants_of(table: PlanTable) -> tuple[VariantKey, ...]:
    """Returns the variants of a footprint that a forecast of these plans needs."""
    return tuple(dict.fromkeys(key for key, _ in _variant_cases(table)))


def plan_features(table: PlanTable, model: ModelFacts, footprint: Footprint) -> PlanFeatures:
    """Encodes plans as features, a row for each.

    Raises:
        KeyError: If the footprint lacks a variant that the plans need: see `variants_of`.
    """
    deepspeed = table.is_value("engine", "deepspeed")
    zero, kept, data = map(table.column, ("zero_stage", "reshard_ranks", "data"))
    half, pure = (~table.is_value(name, "fp32") for name in ("precision", "states"))
    cast = pure | (deepspeed & half)  # weights and gradients in 16 bits
    sharded = np.where(deepspeed, zero >= 1, zero >= 2) & (data > 1)
    fsdp = ~deepspeed & (zero >= 2)
    whole_shards = sharded & (fsdp | (zero == 3))
    shards = np.where(sharded, data // table.column("replicas"), 1)
    ddp, averaged = _replicated(table)
    states, updates = _optimizer_bytes(table, model)
    passes = mean_passes(table, footprint)
    rows = table.column("micro_batch") * table.column("accumulation") / passes
    # that a rank has the tokens of, and in attention heads
    samples = rows / table.column("context")
    return PlanFeatures(
        **_counts(table, "tensor", "pipeline", "context", "experts"),
        **_schedules(table),
        data=data.astype(np.int64),
        shards=shards.astype(np.int64),
        optimizer_sharded=sharded,
        gradients_sharded=sharded & (fsdp | (zero >= 2)),
        weights_sharded=whole_shards,
        regathered=whole_shards & (zero == 3),
        stays_gathered=(zero < 3) | table.column("gathered_between_passes").astype(bool),
        regather_ranks=np.where(kept > 0, kept, shards).astype(np.int64),
        **_routing(table, model),
        **_blocks(table, model, footprint.depth),
        micro_batch=samples,
        accumulation=passes,
        recomputed=_recomputed(table, footprint.depth),
        selective=_share(table, "selective_blocks", footprint.depth)
        + table.is_value("checkpoint_mode", "selective"),
        activations_on_host=_share(table, "offloaded_blocks", footprint.depth)
        + table.column("checkpoint_offload"),
        variant=_variants(table, footprint),
        precision=_precisions(table),
        compiled=table.column("compile").astype(bool),
        fused=np.zeros(len(table), dtype=bool),
        own_loop=np.ones(len(table), dtype=bool),
        weight_bytes=np.where(cast, 2.0, 4.0),
        gathered_bytes=np.where(fsdp | whole_shards, np.where(half, 2.0, 4.0), 0.0),
        gradient_bytes=np.where(pure | (deepspeed & half & (zero > 0)), 2.0, 4.0),
        state_bytes=states,
        reduced_bytes=np.where(cast, 2.0, 4.0),
        frozen_bytes=np.where(cast | (half & (model.base not in (None, "fp32"))), 2.0, 4.0),
        buffer_bytes=_buffers(table, model, ddp, averaged, deepspeed),
        update_bytes=updates + _cast_bytes(table, model.trainable_parameters / shards),
        every_pass=np.where(deepspeed, zero >= 2, fsdp) & (data > 1),
        overlapped=np.where(deepspeed, table.column("overlap").astype(bool), ~averaged),
        **_offloads(table),
        **_fills(table, footprint, rows),
        stack=np.where(deepspeed, STACKS.index("deepspeed"), STACKS.index("torch")),
    )


def _precisions(table: PlanTable) -> Counts:
    codes = _mapped(table, "precision", _PRECISION_CODES)
    whole = table.is_value("float8", "none")
    return np.where(whole, codes, PRECISIONS.index("fp8")).astype(np.int64)


def _counts(table: PlanTable, *names: str) -> dict[str, Any]:
    return {name: table.column(name).astype(np.int64) for name in names}


def _routing(table: PlanTable, model: ModelFacts) -> dict[str, Any]:
    facts, blocks = model.experts, max(sum(model.block_parameters), 1)
    share, routed, layers = 0.0, 0.0, 0.0
    if facts is not None:
        share, layers = facts.parameters / blocks, facts.layers / max(model.blocks, 1)
        routed = facts.per_token * layers
    constants = {"expert_share": share, "routed": routed, "expert_layers": layers}
    return {name: np.full(len(table), value) for name, value in constants.items()}


def _fills(table: PlanTable, footprint: Footprint, rows: Numbers) -> dict[str, Any]:
    """Returns the features of samples that differ in length; `rows` are those of a micro-batch."""
    return {
        "varied": np.full(len(table), footprint.varied) & ~table.is_value("batching", "packed"),
        "filled": fill_ratios(table, footprint),
        "longest_filled": largest_fill(table, footprint, rows),
    }


def _offloads(table: PlanTable) -> dict[str, Any]:
    return {
        "optimizer_on_host": ~table.is_value("offload_optimizer", "none"),
        "weights_on_host": ~table.is_value("offload_parameters", "none"),
        "on_nvme": table.is_value("offload_optimizer", "nvme"),
        "pinned": table.column("pin_memory").astype(bool),
    }


def _optimizer_bytes(table: PlanTable, model: ModelFacts) -> tuple[Numbers, Numbers]:
    """Returns bytes of states, and of temporaries of an update, for each trained parameter."""
    own = model.optimizer  # of the specification's optimizer
    states = _MOMENT_BYTES | dict.fromkeys(_OWN, own.state_bytes)
    updates = _UPDATE_BYTES | dict.fromkeys(_OWN, own.update_bytes)
    pure = ~table.is_value("states", "fp32")
    # moments and temporaries have the type of the weights, but for 8-bit ones
    share = np.where(pure & ~table.is_value("optimizer", "adamw_8bit"), 0.5, 1.0)
    # DeepSpeed updates a copy of its part of the weights
    copied = table.is_value("engine", "deepspeed") & ~table.is_value("precision", "fp32")
    copies = np.where(copied, np.where(pure, 2.0, 4.0), 0.0)
    held = share * _mapped(table, "optimizer", states) + copies
    return held, share * _mapped(table, "optimizer", updates)


def _cast_bytes(table: PlanTable, sharded: Numbers) -> Numbers:
    """Returns bytes per updated parameter of gradients that DeepSpeed casts to fp32 for the update.

    ZeRO-3 flattens and casts `MOST_LIVE` at a time: stage3.py, _prepare_fp32_grad_for_sub_group.
    """
    casts = ~table.is_value("precision", "fp32") & table.is_value("offload_optimizer", "none")
    zero = table.column("zero_stage") * table.is_value("engine", "deepspeed") * casts
    updated = np.maximum(sharded, 1.0)
    pure = ~table.is_value("states", "fp32")  # flattened, but not cast
    flat = np.where(zero == 3, np.where(pure, 2.0, 6.0) * np.minimum(MOST_LIVE / updated, 1.0), 4.0)
    return np.where(pure, np.minimum(flat, 2.0), flat) * (zero > 0)


def _mapped(table: PlanTable, name: str, values: dict[Any, float]) -> Numbers:
    mapped = np.array([values[value] for value in table.values[name]], dtype=float)
    return mapped[table.codes[name]]


def _replicated(table: PlanTable) -> tuple[Flags, Flags]:
    whole = table.is_value("engine", "torch") & (table.column("zero_stage") == 0)
    replicated = whole & (table.column("data") > 1)
    splits = _of_schedule(table, "splits_backward") > 0
    return replicated & ~splits, replicated & splits


def _schedules(table: PlanTable) -> dict[str, Any]:
    """Returns the features that follow from the schedule."""
    splits = _of_schedule(table, "splits_backward") > 0
    even = table.column("pipeline") + _of_schedule(table, "extra_in_flight")
    return {
        "chunks": _of_schedule(table, "stages_per_rank").astype(np.int64),
        "gpipe": table.is_value("pipeline_schedule", "gpipe"),
        "v_shaped": _of_schedule(table, "is_v_shaped") > 0,
        "bubble": _of_schedule(table, "bubble"),
        "even_in_flight": np.where(splits, even, 0.0),
    }


def _of_schedule(table: PlanTable, attribute: str) -> Numbers:
    values = {name: float(getattr(shape, attribute)) for name, shape in SCHEDULES.items()}
    return _mapped(table, "pipeline_schedule", values)


def _recomputed(table: PlanTable, depth: int) -> Numbers:
    """Returns the share of blocks, of which a budget of compiled ones is one too."""
    ratios = {
        ratio: checkpointed_blocks(ratio, depth) / depth if depth else 0.0
        for ratio in table.values["checkpoint_ratio"]
    }
    return _mapped(table, "checkpoint_ratio", ratios) + 1.0 - table.column("checkpoint_budget")


def _share(table: PlanTable, name: str, depth: int) -> Numbers:
    """Returns the share that a count of blocks has of the recomputed ones."""
    recomputed = _recomputed(table, depth) * depth
    return table.column(name) / np.maximum(recomputed, 1.0)


def _buffers(
    table: PlanTable, model: ModelFacts, ddp: Flags, averaged: Flags, deepspeed: Flags
) -> Numbers:
    """Returns bytes of prefetches, and of buckets beside the gradients, at most all of them."""
    bucket = table.column("bucket_mib").astype(float) * MIB
    gradient_bytes = np.where(table.is_value("states", "fp32"), 4.0, 2.0)
    all_gradients = gradient_bytes * model.trainable_parameters
    separate = ~table.column("gradient_as_bucket_view").astype(bool)
    copies = np.where(ddp & separate, all_gradients, 0.0)
    copies = np.where(averaged, np.minimum(bucket, all_gradients), copies)  # one at a time
    zero = deepspeed & (table.column("zero_stage") >= 1) & (table.column("data") > 1)
    count = np.where(table.column("overlap"), 2.0, 1.0)  # one is filled while one is sent
    buckets = np.where(zero, np.minimum(bucket * count, all_gradients), copies)
    zero_3 = zero & (table.column("zero_stage") == 3)
    prefetch = np.minimum(table.column("prefetch_mib").astype(float) * MIB, all_gradients)
    return buckets + np.where(zero_3, prefetch, _gathered_ahead(table, model))


def _gathered_ahead(table: PlanTable, model: ModelFacts) -> Numbers:
    """Returns the bytes of the blocks that FSDP2 gathers ahead beyond one, which it always does.

    With `zero_stage` 2 all blocks are gathered when backward starts, however early they came.
    """
    regathered = table.is_value("engine", "torch") & (table.column("zero_stage") == 3)
    others = model.blocks / table.column("pipeline") - 1  # of a rank, besides the one in use
    ahead = np.minimum(table.column("prefetch_blocks"), np.maximum(others, 0.0))
    block = sum(model.block_parameters) / max(model.blocks, 1) / table.column("tensor")
    element_bytes = np.where(table.is_value("precision", "fp32"), 4.0, 2.0)
    return np.where(regathered, np.maximum(ahead - 1, 0.0) * block * element_bytes, 0.0)


def _blocks(table: PlanTable, model: ModelFacts, depth: int) -> dict[str, Any]:
    """Returns the blocks on a pipeline's first rank, its fullest middle rank and its last one."""
    pipeline = table.column("pipeline").astype(np.int64)
    blocks = np.zeros((3, len(table)))
    for name in table.values["pipeline_schedule"]:
        of_name = table.is_value("pipeline_schedule", name)
        for ranks in np.unique(pipeline[of_name]):
            held = _stage_blocks(model, depth, int(ranks), SCHEDULES[name])
            blocks[:, of_name & (pipeline == ranks)] = np.array(held)[:, None]
    return dict(zip(("first_blocks", "middle_blocks", "last_blocks"), blocks, strict=True))


def _stage_blocks(
    model: ModelFacts, depth: int, ranks: int, shape: ScheduleShape
) -> tuple[float, ...]:
    if ranks == 1:
        return (depth, 0.0, depth)
    stages = model_stages(model, ranks * shape.stages_per_rank)
    counts = [
        sum(len(stages[stage]) for stage in shape.stages_of(rank, ranks)) for rank in range(ranks)
    ]
    return (counts[0], max(counts[1:-1], default=0.0), counts[-1])


def _variant_cases(table: PlanTable) -> list[tuple[VariantKey, NDArray[np.bool_]]]:
    """Returns the variants of the table, each with the mask of its rows."""
    splits = np.where(
        table.column("tensor") > 1, np.where(table.column("sequence_parallel"), 2, 1), 0
    )
    whole = ~table.is_value("engine", "deepspeed") & (table.column("zero_stage") < 2)
    casts = np.where(whole & table.is_value("states", "fp32"), 1, 2)
    casts = np.where(table.is_value("precision", "fp32"), 0, casts)
    derived: dict[str, tuple[Any, Any]] = {
        "compute": (("fp32", "autocast", "cast"), casts),
        "split": (("none", "tensor", "sequence"), splits),
    }
    axes = [
        derived.get(name) or (table.values[name], table.codes[name]) for name in VariantKey._fields
    ]
    shape = [len(values) for values, _ in axes]
    code = np.ravel_multi_index([codes.astype(np.int64) for _, codes in axes], shape)
    cases = []
    for number in np.unique(code):
        indices = np.unravel_index(number, shape)
        key = (values[index] for (values, _), index in zip(axes, indices, strict=True))
        cases.append((VariantKey(*key), code == number))
    return cases


def _variants(table: PlanTable, footprint: Footprint) -> NDArray[np.int64]:
    indices = np.zeros(len(table), dtype=np.int64)
    for key, rows in _variant_cases(table):
        indices[rows] = footprint.variants.index(footprint.variant(*key))
    return indices
