"""Engine of a row, and what is split over how many ranks, from its columns."""

import re
from dataclasses import dataclass
from typing import Literal

from benchmarks.published.cells import Row, UnusableRowError
from benchmarks.published.devices import NEW
from benchmarks.published.values import Engine, Generation, Stage

Zero = Literal[0, 1, 2, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Ranks along each dimension; together they are all GPUs, but for rounding.

    `experts` are ranks of the others that divide experts between them.
    """

    gpus: int
    tensor: int
    pipeline: int
    data: int
    context: int = 1
    experts: int = 1
    stages: tuple[Stage, ...] = ()


def engine_of(row: Row) -> Engine:
    """Returns the engine, by the sharding's words first, then by notes and what is split."""
    sharding = row.text("sharding")
    told = f"{row.text('notes')} {row.text('source')}"
    rules: tuple[tuple[bool, Engine], ...] = (
        (_has(r"paxml|maxtext|\bjax\b", f"{sharding} {told}"), "jax"),
        (_has(r"megatron-?fsdp", sharding), "megatron"),
        (_has(r"fsdp|hsdp|torchtitan", sharding), "fsdp"),
        (_has(r"paddle|colossal|gemini|bmtrain|fairscale", sharding), "other"),
        (_has(r"megatron-deepspeed", told), "megatron-deepspeed"),
        (_has(r"deepspeed.*(3d|pipe)", sharding), "megatron-deepspeed"),
        (_has(r"(?<!no )distributed ?optimizer", sharding), "megatron"),
        (_has(r"zero-?[123]|deepspeed", sharding), "deepspeed"),
        (_has(r"\bnemo\b|megatron|aceso", told), "megatron"),
        (max(row.count("tp") or 1, row.count("pp") or 1) > 1, "megatron"),
        (_has(r"\bhf\b|hugging ?face|transformers|swift|peft|trainer", told), "hf"),
    )
    return next((engine for applies, engine in rules if applies), "ddp")


def zero_stage_of(row: Row, engine: Engine, generation: Generation) -> Zero:
    """Returns what data ranks split: 1 optimizer, 2 gradients too, 3 weights too.

    Where the cell is empty Megatron on devices of 2022 and later has its distributed optimizer, as
    NeMo's recipes do; else nothing is split.

    Source: recipes of NVIDIA NeMo 24 and later (`use_distributed_optimizer: true`).
    """
    words = row.text("sharding")
    if not words:
        return 1 if engine == "megatron" and generation in NEW else 0
    rules: tuple[tuple[str, Zero], ...] = (
        (r"(?<!no )distributed ?optimizer", 1),
        (r"^(none|ddp|zero-?0)|no_shard", 0),
        (r"grad_op|zero-?2", 2),
        (r"zero-?1", 1),
        (r"fsdp|hsdp|zero-?3|torchtitan", 3),
    )
    return next((stage for pattern, stage in rules if _has(pattern, words)), 0)


def shards_of(row: Row, stage: Zero, data: int) -> int:
    """Over how many ranks the ZeRO stage splits: all data ranks but where the cell says less.

    Hybrid sharding that names no number shards inside a node of 8.

    Source: torch.distributed.fsdp.ShardingStrategy.HYBRID_SHARD.
    """
    words = row.text("sharding")
    named = re.search(r"degree (\d+)|fsdp ?[=(] ?(\d+)", words)
    if stage == 0:
        return 1
    if named:
        return min(data, int(named.group(1) or named.group(2)))
    return min(8, data) if "hsdp" in words or "hybrid" in words else data


def degrees_of(row: Row) -> Degrees:
    """Ranks by dimension: 1 for what is not stated, the data ranks are what is left.

    Raises:
        UnusableRowError: If the number of GPUs is not stated, if the degrees contradict it, or if
            layers are only laid over several devices.
    """
    if _has(r"device_map|naive", row.text("sharding")):
        raise UnusableRowError("layers laid over devices without a schedule")
    tensor, pipeline, data = row.count("tp"), row.count("pp") or 1, row.count("dp")
    context = context_of(row)
    gpus = row.count("n_gpus") or (data or 1) * (tensor or 1) * pipeline * context
    if row.count("n_gpus") is None and data is None:
        raise UnusableRowError("no number of GPUs")
    stages = stages_of(row)
    if stages:
        data = data or stages[0].data
        mean = max(1, round(gpus / (pipeline * data)))
        return Degrees(gpus=gpus, tensor=mean, pipeline=pipeline, data=data, stages=stages)
    tensor = tensor or row.noted(r"\(mp=(\d+)\)") or 1
    data = data or max(1, gpus // (tensor * pipeline * context))
    if tensor * pipeline * context * data != gpus:
        raise UnusableRowError("degrees do not multiply to the number of GPUs")
    experts = row.noted(r"\b(?:ep|expert_parallel)\s?=?\s?(\d+)") or 1
    return Degrees(
        gpus=gpus, tensor=tensor, pipeline=pipeline, data=data, context=context, experts=experts
    )


def stages_of(row: Row) -> tuple[Stage, ...]:
    """The stages where the notes list `tp per stage [...]` and they differ, else nothing."""
    tensor, data = _listed(row, "tp per stage"), _listed(row, "dp per stage")
    shares = _listed(row, "(?:ops|layers) per stage")
    ratios = _listed(row, "recompute fraction per stage") or (0.0,) * len(tensor)
    if not tensor or not len(tensor) == len(data) == len(shares) == len(ratios):
        return ()
    whole = sum(shares)
    return tuple(
        Stage(share=share / whole, tensor=round(t), data=round(d), checkpoint_ratio=ratio)
        for share, t, d, ratio in zip(shares, tensor, data, ratios, strict=True)
    )


def _listed(row: Row, words: str) -> tuple[float, ...]:
    found = re.search(rf"{words} \[([\d., ]+)\]", row.text("notes"))
    return tuple(float(part) for part in found.group(1).split(",")) if found else ()


def context_of(row: Row) -> int:
    """Ranks that share a sample's tokens through the whole model (ring, Ulysses, cp)."""
    words = row.text("cp_or_sp")
    if _has(r"^(sp|sequence)", words):
        return 1
    found = re.search(r"(\d+)", words)
    return int(found.group(1)) if found else 1


def splits_sequence(row: Row, engine: Engine, generation: Generation, tensor: int) -> bool:
    """Returns whether tensor ranks split the sequence between matmuls.

    Where nothing is stated, Megatron on devices of 2022 and later does, and so does what is
    built of torch's own tensor parallelism beside FSDP.

    Source: recipes of NVIDIA NeMo 24 and later (`sequence_parallel: true` with tensor ranks);
    torchtitan's `parallelize_llama`, which knows no other way.
    """
    if tensor == 1:
        return False
    words = row.text("cp_or_sp")
    stated = _has(r"(^|\+)(sp\d*\b|sequence)", words)
    silent = words in {"", "1", "cp=1"} or context_of(row) > 1
    return stated or (silent and (engine == "fsdp" or (engine == "megatron" and generation in NEW)))


def _has(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None
