"""Seconds in which data ranks and pipeline stages talk while nothing is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search_spaces.forecast.coefficients import TimeCoefficients
from search_spaces.forecast.executions import STACKS, Flags, Numbers
from search_spaces.forecast.micro_batch import reached
from search_spaces.forecast.work import Work

# whose hooks run in Python for each weight, where gradients are split
_HOOKING = [STACKS.index(name) for name in ("deepspeed", "megatron-deepspeed")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageParameters:
    """Parameters of the rank that sets a pipeline's pace: a row for each plan."""

    trained: Numbers
    held: Numbers  # frozen ones included


def stage_parameters(
    work: Work, n_embedding: Numbers, n_block: Numbers, n_head: Numbers
) -> StageParameters:
    """Those of so many embeddings, blocks and heads."""
    rows = work.rows
    both = n_embedding * n_head  # tied weights exist once where one rank has both ends
    trained = (
        n_embedding * rows.embedding_trained
        + n_block * rows.block_trained
        + n_head * rows.head_trained
        - both * rows.tied * (rows.head_trained > 0)
    )
    frozen = (
        n_embedding * rows.embedding_frozen
        + n_block * rows.block_frozen
        + n_head * rows.head_frozen
    )
    return StageParameters(trained=trained, held=trained + frozen)


def _ring(
    work: Work, by: TimeCoefficients, ranks: Numbers, stride: Numbers
) -> tuple[Numbers, Numbers]:
    """Bytes per second through a ring of data ranks, and seconds that each collective waits."""
    rows = work.rows
    local = np.clip(rows.node_devices / stride, 1, ranks)
    inside = ranks * stride <= rows.node_devices
    share = by.gather_share * np.where(rows.slow_link > 0, by.slow_gather, 1.0)
    within = reached(share, rows.measured) * rows.link
    across = np.minimum(within, by.network_share * rows.network * local)
    waits = by.collective_seconds * np.log2(np.maximum(ranks, 2)) * np.where(inside, 1, 2)
    waits = np.maximum(waits, rows.collective_seconds)
    return np.where(inside, within, across), np.where(ranks > 1, waits, 0.0)


def data_collectives(
    work: Work, by: TimeCoefficients, parameters: StageParameters, computing: Numbers
) -> tuple[Numbers, Numbers]:
    """Seconds a step that data ranks talk while nothing is computed, and those that are hidden."""
    execution = work.executions
    count = execution.accumulation.astype(float)
    tensor, shards = execution.tensor.astype(float), execution.shards.astype(float)
    replicas = execution.data / shards
    rate, waits = _ring(work, by, shards, tensor)
    across, across_waits = _ring(work, by, replicas, tensor * shards)
    share = (shards - 1) / shards
    width = np.where(execution.gathered_bytes > 0, execution.gathered_bytes, execution.weight_bytes)
    calls = execution.middle_blocks + execution.first_blocks
    gather = parameters.held * width * share / rate + waits * calls
    scatter = parameters.trained * execution.reduced_bytes * share / rate + waits * calls
    others = (replicas - 1) / replicas
    average = 2 * parameters.trained * execution.reduced_bytes * others / (across * shards)
    average = average + np.where(replicas > 1, across_waits * calls, 0.0)
    passes = np.where(execution.every_pass, count, 1.0)
    whole = execution.weights_sharded
    # forward and backward of each micro-batch gather weights; else updated ones once a step
    forward = np.where(whole, gather * np.where(execution.regathered, count, 1.0), 0.0)
    backward = np.where(whole & execution.regathered, gather * count, 0.0)
    updated = np.where(~whole & execution.optimizer_sharded, gather, 0.0)
    reduced = np.where(
        execution.gradients_sharded | execution.optimizer_sharded, scatter, 2 * scatter
    )
    reduced = np.where(shards > 1, reduced, 0.0) * passes
    hides_forward = computing * np.where(whole & execution.regathered, count, 1.0) / 3
    hides_backward = computing * passes * 2 / 3
    hides = execution.overlapped & (work.rows.on_cpu == 0)  # a core computes or talks
    open_forward = _exposed(forward, hides_forward, hides, by)
    open_backward = _exposed(backward + reduced + average, hides_backward, hides, by)
    hooked = execution.gradients_sharded & np.isin(execution.stack, _HOOKING)
    hooks = by.hook_seconds * np.where(hooked, execution.first_blocks * passes, 0.0)
    exposed = open_forward + open_backward + updated + hooks
    talked = forward + backward + reduced + average + updated + hooks
    return exposed, talked - exposed


def _exposed(
    talked: Numbers, computing: Numbers, overlapped: Flags, by: TimeCoefficients
) -> Numbers:
    covered = np.minimum(talked, computing) * max(1 - by.exposed, 0.0)
    return talked - np.where(overlapped, covered, 0.0)


def hops(work: Work, by: TimeCoefficients) -> Numbers:
    """Seconds a step in which stages hand hidden states on and gradients back."""
    execution, rows = work.executions, work.rows
    stride = execution.tensor * execution.data
    rate = np.where(stride * 2 <= rows.node_devices, rows.link, rows.network)
    hidden = work.parts.block_input[rows.case] * execution.filled
    each = hidden / (by.hop_share * rate) + by.collective_seconds
    count = 2.0 * (execution.accumulation * execution.chunks + execution.pipeline - 1)
    return np.where(execution.pipeline > 1, count * each, 0.0)
