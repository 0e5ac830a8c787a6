"""Bytes that a rank holds at its peak, by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search_spaces.costs.plan_features import Counts, Numbers
from search_spaces.costs.workload import Work

CATEGORIES = (
    "weights",
    "gradients",
    "optimizer",
    "gathered",  # weights and gradients that are whole for a while
    "activations",
    "temporaries",
    "buffers",  # of communication
    "outside",  # of the allocator: context, libraries
    "fragmentation",
)
STAGES = ("first", "middle", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCoefficients:
    """What no trace tells: how allocators and libraries use memory. All are positive."""

    fragmentation: float = 0.1  # of what comes and goes: reserved beyond what is allocated
    varied: float = 0.3  # of it, where micro-batches differ in length
    library_bytes: float = 4e8  # of the collectives' library, where there are several ranks
    workspace_bytes: float = 1e8  # of the matmul library
    host_bytes: float = 1.6e7  # of libraries in a process on a CPU, beyond a bare worker
    host_fragmentation: float = 0.7  # of what comes and goes there: the C library gives back late


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakBytes:
    """The peak of the rank that holds most: bytes of shape (plans, CATEGORIES), and its stage."""

    bytes: Numbers
    stage: Counts  # index into STAGES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stage:
    """What a rank of a pipeline holds: counts of parts, and micro-batches under way."""

    embeddings: Numbers
    blocks: Numbers
    heads: Numbers
    under_way: Numbers


def peak_bytes(work: Work, by: MemoryCoefficients) -> PeakBytes:
    """The peak of every plan; a pipeline's fullest stage counts."""
    held = _held(work, by, _stage(work, "first"))
    stage = np.zeros(len(work), dtype=np.int64)
    split = np.flatnonzero(work.executions.pipeline > 1)
    if len(split):
        part = work.take(split)
        for number in (1, 2):
            other = _held(part, by, _stage(part, STAGES[number]))
            fuller = other.sum(axis=0) > held[:, split].sum(axis=0)
            held[:, split[fuller]] = other[:, fuller]
            stage[split[fuller]] = number
    return PeakBytes(bytes=held.T, stage=stage)


def _stage(work: Work, name: str) -> _Stage:
    """The first, the fullest middle or the last rank of each pipeline."""
    execution = work.executions
    alone = execution.pipeline == 1
    count, depth = execution.accumulation.astype(float), execution.pipeline.astype(float)
    chunks = execution.chunks.astype(float)
    # interleaved 1F1B: Narayanan et al. 2021, arXiv:2104.04473, section 2.2
    most = np.where(chunks > 1, ((chunks + 1) * depth - 1) / chunks, depth)
    before = {"first": 0.0 * depth, "middle": 1.0 + 0.0 * depth, "last": depth - 1}[name]
    blocks = {
        "first": execution.first_blocks,
        "middle": execution.middle_blocks,
        "last": execution.last_blocks,
    }[name]
    held = np.where(execution.gpipe, count, np.minimum(count, np.maximum(most - before, 1)))
    return _Stage(
        embeddings=np.full(len(work), float(name == "first")),
        blocks=blocks,
        heads=alone * 1.0 if name == "first" else np.full(len(work), float(name == "last")),
        under_way=np.where(alone, 1.0, held),
    )


def _held(work: Work, by: MemoryCoefficients, stage: _Stage) -> Numbers:
    execution, rows = work.executions, work.rows
    trained = (
        stage.embeddings * rows.embedding_trained
        + stage.blocks * rows.block_trained
        + stage.heads * rows.head_trained
        - stage.embeddings * stage.heads * rows.tied * (rows.head_trained > 0)
    )
    frozen = (
        stage.embeddings * rows.embedding_frozen
        + stage.blocks * rows.block_frozen
        + stage.heads * rows.head_frozen
        - stage.embeddings * stage.heads * rows.tied * (rows.head_trained == 0)
    )
    weights = trained * execution.weight_bytes + np.maximum(frozen, 0.0) * execution.frozen_bytes
    weights = weights / np.where(execution.weights_sharded, execution.shards, 1)
    gradients = trained * execution.gradient_bytes
    gradients = gradients / np.where(execution.gradients_sharded, execution.shards, 1)
    mine = trained / np.where(execution.optimizer_sharded, execution.shards, 1)
    weights = np.where(execution.weights_on_host, 0.0, weights)
    on_host = execution.optimizer_on_host
    optimizer = np.where(on_host, 0.0, mine * execution.state_bytes)
    gradients = np.where(on_host & execution.weights_on_host, 0.0, gradients)
    peak = _most(_moments(work, stage, gradients, mine))
    ranks = execution.tensor * execution.pipeline * execution.data
    cuda = rows.on_cpu == 0
    libraries = rows.context_bytes + by.library_bytes * (ranks > 1)
    outside = np.where(cuda, libraries, by.host_bytes)
    moving = peak[1] + peak[2] + peak[3]
    fragmentation = np.where(execution.varied, by.varied, by.fragmentation)
    fragmentation = np.where(cuda, fragmentation, by.host_fragmentation)
    temporaries = peak[3] + np.where(cuda, by.workspace_bytes, 0.0)
    found: Numbers = np.array(
        [
            weights,
            peak[0],
            optimizer,
            peak[1],
            peak[2],
            temporaries,
            execution.buffer_bytes,
            outside,
            moving * fragmentation,
        ]
    ) * (trained + frozen > 0)
    return found


def _most(moments: Sequence[tuple[Numbers, ...]]) -> Numbers:
    """Of each plan the moment at which the sum is largest."""
    chosen = np.array(moments[0])
    total = chosen.sum(axis=0)
    for moment in moments[1:]:
        other = np.array(moment)
        more = other.sum(axis=0)
        chosen = np.where(more > total, other, chosen)
        total = np.maximum(total, more)
    return chosen


def _moments(
    work: Work, stage: _Stage, gradients: Numbers, mine: Numbers
) -> tuple[tuple[Numbers, ...], ...]:
    """Gradients, gathered weights, activations and temporaries at three moments.

    These are the end of forward, the start of backward in the blocks, and the update.
    """
    execution, rows, case = work.executions, work.rows, work.rows.case
    parts = work.parts
    inputs = np.where(execution.activations_on_host, 0.0, parts.block_input[case])
    kept = np.where(execution.selective, parts.block_kept[case], 0.0) + inputs
    saved = parts.block_saved[case]
    ratio = execution.recomputed
    each = ratio * kept + (1 - ratio) * saved
    activations = stage.under_way * (
        stage.blocks * each + stage.embeddings * parts.embedding_saved[case]
    )
    # autocast keeps the weights that it cast until forward is over, of recomputed blocks too
    copies = stage.under_way * stage.blocks * ratio * parts.block_copies[case]
    at_head = activations + copies + stage.heads * parts.head_saved[case]
    again = np.where(ratio > 0, saved, 0.0)
    has_blocks = stage.blocks > 0
    backward = parts.block_backward_transient[case] * has_blocks
    head = np.maximum(parts.head_forward_transient, parts.head_backward_transient)[case]
    forward = parts.block_forward_transient[case] * has_blocks
    # gradients are there from the second micro-batch on; in the buckets of ranks that hold whole
    # ones, for good
    buckets = (execution.data > 1) & ~execution.gradients_sharded
    lasting = np.where((execution.accumulation > 1) | buckets, gradients, 0.0)
    whole = execution.gathered_bytes * (rows.block_trained + rows.block_frozen)
    ends = execution.gathered_bytes * (
        stage.embeddings * (rows.embedding_trained + rows.embedding_frozen)
        + stage.heads * (rows.head_trained + rows.head_frozen)
        - stage.embeddings * stage.heads * rows.tied
    )
    gathers = execution.weights_sharded & (execution.shards > 1)
    kept_whole = np.where(execution.regathered, 2.0, np.maximum(stage.blocks, 1.0))
    gathered = np.where(gathers, ends + kept_whole * whole, 0.0)
    reducing = np.where(
        gathers & execution.gradients_sharded,
        rows.block_trained * (execution.gathered_bytes + execution.reduced_bytes),
        0.0,
    )
    ending = np.where(gathers, ends + whole, 0.0)
    left = np.where(execution.regathered, ending, gathered)
    # a gradient lies beside the sum that it is added to
    adding = np.where(execution.accumulation > 1, rows.largest_weight * execution.gradient_bytes, 0)
    return (
        (lasting, left, at_head, np.maximum(stage.heads * head, forward)),
        (lasting, gathered + reducing, activations + again * has_blocks, backward + adding),
        (gradients, 0.0 * whole, 0.0 * whole, execution.update_bytes * mine),
    )
