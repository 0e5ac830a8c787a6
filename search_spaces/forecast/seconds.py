"""Seconds of a step by term: what a device could do, divided by how near software comes to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search_spaces.forecast.coefficients import TimeCoefficients
from search_spaces.forecast.collectives import (
    StageParameters,
    data_collectives,
    hops,
    stage_parameters,
)
from search_spaces.forecast.executions import Counts, Numbers
from search_spaces.forecast.micro_batch import COMPUTING, PIECES, piece_seconds, reached
from search_spaces.forecast.work import Work

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
