"""Seconds of a step by term: what a device could do, divided by how near software comes to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.micro_batch import COMPUTING, PIECES, piece_seconds, reached
from search_spaces.costs.plan_features import STACKS, Counts, Flags, Numbers
from search_spaces.costs.workload import Work

# whose hooks run in Python for each weight, where gradients are split
_HOOKING = [STACKS.index(name) for name in ("deepspeed", "megatron-deepspeed")]
TERMS = (
    *COMPUTING,
    "data_collectives",
    "pipeline_bubble",
    "pipeline_hops",
    "optimizer",
    "offload",
    "overhead",
)
_AT = {name: at for at, name in enumerate(TERMS)}


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTerms:
    """Seconds of an optimizer step, of shape (plans, TERMS), and how it is laid out.

    `recomputed` is the share of the computing terms that recomputation takes, `hidden` seconds
    of communication that computing hides.
    """

    seconds: Numbers
    recomputed: Numbers
    hidden: Numbers


def step_terms(work: Work, by: TimeCoefficients) -> StepTerms:
    """The terms of every plan."""
    pieces = piece_seconds(work, by)[work.rows.case]  # plans, pieces, terms
    execution, rows = work.executions, work.rows
    embedding, block, full, selective, head = (pieces[:, index] for index in range(len(PIECES)))
    recompute = np.where(execution.selective[:, None], selective, full)
    again = execution.recomputed[:, None] * recompute
    worked = block + again
    n_embedding, n_block, n_head = _fullest(work, embedding, worked, head)
    micro = n_embedding[:, None] * embedding + n_block[:, None] * worked + n_head[:, None] * head
    count = execution.accumulation.astype(float)
    terms = np.zeros((len(TERMS), len(work)))
    terms[: len(COMPUTING)] = micro.T * count
    terms[_AT["launches"]] += by.recompute_seconds * n_block * execution.recomputed * count
    computing = micro.sum(axis=1)
    whole = embedding.sum(axis=1) + rows.depth * worked.sum(axis=1) + head.sum(axis=1)
    bubble = (whole - computing) / execution.chunks
    terms[_AT["pipeline_bubble"]] = np.where(
        execution.pipeline > 1, by.bubble * np.maximum(bubble, 0.0), 0.0
    )
    terms[_AT["pipeline_hops"]] = hops(work, by)
    parameters = stage_parameters(work, n_embedding, n_block, n_head)
    terms[_AT["data_collectives"]], hidden = data_collectives(work, by, parameters, computing)
    terms[_AT["optimizer"]] = _update(work, by, parameters.trained)
    terms[_AT["offload"]] = _offload(work, by, parameters, n_block)
    on_cpu = rows.on_cpu > 0
    terms[_AT["data_collectives"]] *= np.where(on_cpu, by.host_talk, 1.0)
    terms[_AT["offload"]] *= np.where(on_cpu, by.host_offload, 1.0)
    terms[_AT["overhead"]] = by.step_seconds + by.pass_seconds * count
    nodes = np.maximum(
        execution.tensor * execution.pipeline * execution.data / rows.node_devices, 1
    )
    factor = (1 + by.node_jitter * np.log2(nodes)) * np.asarray(by.stacks)[execution.stack]
    share = n_block * again.sum(axis=1) / np.maximum(computing, 1e-12)
    return StepTerms(seconds=(terms * factor).T, recomputed=share, hidden=hidden * factor)


def _fullest(
    work: Work, embedding: Numbers, block: Numbers, head: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """How many embeddings, blocks and heads the slowest rank of a pipeline works on."""
    execution = work.executions
    e, b, h = embedding.sum(axis=1), block.sum(axis=1), head.sum(axis=1)
    alone = execution.pipeline == 1
    first = e + execution.first_blocks * b + np.where(alone, h, 0.0)
    middle = execution.middle_blocks * b
    last = execution.last_blocks * b + h
    which: Counts = np.where(alone, 0, np.argmax(np.stack([first, middle, last]), axis=0))
    blocks = np.choose(
        which, [execution.first_blocks, execution.middle_blocks, execution.last_blocks]
    )
    return (which == 0) * 1.0, blocks * 1.0, ((which == 2) | alone) * 1.0


def _update(work: Work, by: TimeCoefficients, trained: Numbers) -> Numbers:
    """Seconds of the optimizer on the device: it reads and writes states and weights once."""
    execution, rows = work.executions, work.rows
    mine = trained / np.where(execution.optimizer_sharded, execution.shards, 1)
    moved = mine * (
        2 * execution.state_bytes + 2 * execution.weight_bytes + execution.gradient_bytes
    )
    seconds = moved / (reached(by.update_share, rows.measured) * rows.bandwidth)
    return np.where(execution.optimizer_on_host, 0.0, seconds)


def _offload(
    work: Work, by: TimeCoefficients, parameters: StageParameters, n_block: Numbers
) -> Numbers:
    """Seconds a step of traffic with the host and its drives, and of the optimizer there."""
    execution, rows = work.executions, work.rows
    count = execution.accumulation.astype(float)
    rate = reached(by.pcie_share, rows.measured) * rows.pcie
    mine = parameters.trained / np.where(execution.optimizer_sharded, execution.shards, 1)
    states = mine * (execution.reduced_bytes + execution.weight_bytes) / rate
    touched = mine * (2 * execution.state_bytes + 2 * execution.gradient_bytes)
    states = states + touched / (reached(by.host_update_share, rows.measured) * rows.host_bandwidth)
    drive = np.where(execution.on_nvme, 2 * mine * execution.state_bytes / rows.nvme, 0.0)
    held = parameters.held / np.where(execution.weights_sharded, execution.shards, 1)
    weights = 2 * count * held * execution.weight_bytes / rate
    inputs = work.parts.block_input[rows.case] * execution.filled
    kept = 2 * count * n_block * execution.recomputed * inputs / rate
    return (
        np.where(execution.optimizer_on_host, states + drive, 0.0)
        + np.where(execution.weights_on_host, weights, 0.0)
        + np.where(execution.activations_on_host, kept, 0.0)
    )
