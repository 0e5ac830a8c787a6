"""Memory forecast: bytes that a rank holds at its peak, by category."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from search_spaces.costs.plan_features import STACKS, Counts, Numbers
from search_spaces.costs.stages import STAGES, StageParts, stage_of, stage_parameters
from search_spaces.costs.workload import Workload

CATEGORIES = (
    "weights",
    "gradients",
    "optimizer",
    "gathered",  # weights and gradients that are temporarily whole
    "activations",
    "temporaries",
    "buffers",  # of communication
    "outside",  # of the allocator: context, libraries
    "fragmentation",
)
_MOMENTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCoefficients:
    """Memory use of allocators and libraries, which no trace shows. All are positive.

    Fragmentation is a share of the transient memory: gathered, activations and temporaries.
    """

    fragmentation: float = 0.1  # reserved beyond allocated, on CUDA
    varied: float = 0.3  # the same, if micro-batches differ in length
    library_bytes: float = 4e8  # of the communication library, with several ranks
    workspace_bytes: float = 1e8  # of the matmul library
    host_bytes: float = 1.6e7  # of libraries in a CPU process, above an idle worker
    host_fragmentation: float = 0.7  # on CPU, where the C library is slow to return memory
    # Share that compiled blocks save of what eager ones save beside results of matmuls and
    # attention: AOTAutograd's partitioner recomputes cheap chains from them in backward. 0.33 to
    # 0.50 in blocks of Llama and GPT-2 (tests/search_spaces/costs/test_compiled_memory.py)
    compiled_saved: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakBytes:
    """Peak of the fullest rank: bytes of shape (plans, CATEGORIES), and its stage."""

    bytes: Numbers
    stage: Counts  # index into STAGES


def peak_bytes(work: Workload, coefficients: MemoryCoefficients) -> PeakBytes:
    """Forecasts the peak of every plan; for a pipeline, that of its fullest stage.

    Args:
        work: The plans.
        coefficients: Memory use of allocators and libraries.
    """
    categories = _rank_bytes(work, coefficients, stage_of(work, "first"))
    stage = np.zeros(len(work), dtype=np.int64)
    split = np.flatnonzero(work.executions.pipeline > 1)
    if len(split):
        part = work.take(split)
        for number in (1, 2):
            other = _rank_bytes(part, coefficients, stage_of(part, STAGES[number]))
            fuller = other.sum(axis=0) > categories[:, split].sum(axis=0)
            categories[:, split[fuller]] = other[:, fuller]
            stage[split[fuller]] = number
    return PeakBytes(bytes=categories.T, stage=stage)


def moment_bytes(work: Workload, coefficients: MemoryCoefficients) -> Iterator[Numbers]:
    """Yields bytes at each moment of each stage, of shape (plans, CATEGORIES).

    The peak is the largest of them. They are linear in the shares of recomputed blocks, if there
    are any.
    """
    for name in STAGES:
        for moment in range(_MOMENTS):
            yield _rank_bytes(work, coefficients, stage_of(work, name), moment).T


def _rank_bytes(
    work: Workload, coefficients: MemoryCoefficients, stage: StageParts, moment: int | None = None
) -> Numbers:
    """Returns the bytes of a rank at one moment of `_moments`, or by default at the fullest."""
    features, rows = work.executions, work.rows
    trained, frozen = stage_parameters(work, stage)
    weights = trained * features.weight_bytes + frozen * features.frozen_bytes
    weights = weights / np.where(features.weights_sharded, features.shards, 1)
    weights = weights + stage.blocks * rows.block_quantized_bytes  # which no engine shards
    gradients = trained * features.gradient_bytes
    gradients = gradients / np.where(features.gradients_sharded, features.shards, 1)
    updated = trained / np.where(features.optimizer_sharded, features.shards, 1)
    weights = np.where(features.weights_on_host, 0.0, weights)
    on_host = features.optimizer_on_host
    optimizer = np.where(on_host, 0.0, updated * features.state_bytes)
    # gradients go to the host as they come, but ZeRO-1 waits with those of the other ranks' parts
    stays = features.optimizer_sharded & ~features.gradients_sharded
    gradients = np.where(on_host & ~stays, 0.0, gradients)
    saved = _saved(work, coefficients.compiled_saved)
    moments = _moments(work, stage, gradients, updated, saved)
    peak = _largest(moments) if moment is None else np.array(moments[moment])
    ranks = features.tensor * features.pipeline * features.data
    cuda = rows.on_cpu == 0
    libraries = rows.context_bytes + coefficients.library_bytes * (ranks > 1)
    outside = np.where(cuda, libraries, coefficients.host_bytes)
    fragmentation = np.where(features.varied, coefficients.varied, coefficients.fragmentation)
    fragmentation = np.where(cuda, fragmentation, coefficients.host_fragmentation)
    fragments = (peak[1] + peak[2] + peak[3]) * fragmentation
    temporaries = peak[3] + np.where(cuda, coefficients.workspace_bytes, 0.0)
    states = (weights, peak[0], optimizer, peak[1], peak[2])
    others = (temporaries, features.buffer_bytes, outside, fragments)
    return np.array([*states, *others]) * (trained + frozen > 0)


def _largest(moments: Sequence[tuple[Numbers, ...]]) -> Numbers:
    """Returns for each plan the moment with the largest sum."""
    every = np.array(moments)
    fullest = every.sum(axis=1).argmax(axis=0)
    return np.take_along_axis(every, fullest[None, None], axis=0)[0]


def _saved(work: Workload, compiled_saved: float) -> Numbers:
    case = work.rows.case
    saved, kept = work.parts.block_saved[case], work.parts.block_kept[case]
    share = np.where(work.executions.compiled, compiled_saved, 1.0)
    return np.minimum(saved, kept + share * (saved - kept))


def _moments(
    work: Workload, stage: StageParts, gradients: Numbers, updated: Numbers, saved: Numbers
) -> tuple[tuple[Numbers, ...], ...]:
    """Returns gradients, gathered weights, activations and temporaries at four moments.

    The moments are the end of forward, the start and the end of backward, and the update.
    `updated` are the parameters that a rank updates, `saved` the bytes of `_saved`.
    """
    features, rows, case = work.executions, work.rows, work.rows.case
    parts = work.parts
    inputs = (1.0 - features.activations_on_host) * parts.block_input[case]
    recompute_saved = features.selective * parts.block_kept[case] + inputs
    ratio = features.recomputed
    per_block = ratio * recompute_saved + (1 - ratio) * saved
    activations = stage.in_flight * (
        stage.blocks * per_block + stage.embeddings * parts.embedding_saved[case]
    )
    # autocast keeps cast weights until the end of forward, also those of recomputed blocks
    copies = stage.in_flight * stage.blocks * ratio * parts.block_copies[case]
    at_head = activations + copies + stage.heads * parts.head_saved[case]
    recomputed = np.where(ratio > 0, saved, 0.0)  # of the block that backward works on
    has_blocks = stage.blocks > 0
    backward = parts.block_backward_transient[case] * has_blocks
    head = np.maximum(parts.head_forward_transient, parts.head_backward_transient)[case]
    forward = parts.block_forward_transient[case] * has_blocks
    # gradients persist from the second micro-batch on; buckets of unsharded gradients always do
    buckets = (features.data > 1) & ~features.gradients_sharded
    lasting = np.where((features.accumulation > 1) | buckets, gradients, 0.0)
    after_forward, at_start, at_end = _gathered(work, stage)
    # a new gradient exists next to the sum that it is added to
    adding = rows.largest_weight / features.experts * features.gradient_bytes
    adding = np.where(features.accumulation > 1, adding, 0.0)
    return (
        (lasting, after_forward, at_head, np.maximum(stage.heads * head, forward)),
        (lasting, at_start, activations + recomputed * has_blocks, backward + adding),
        (
            lasting,
            at_end,
            activations + saved * has_blocks - per_block * stage.blocks,
            backward + adding,
        ),
        (gradients, 0.0 * updated, 0.0 * updated, features.update_bytes * updated),
    )


def _gathered(work: Workload, stage: StageParts) -> tuple[Numbers, Numbers, Numbers]:
    """Returns the bytes of weights and gradients that are temporarily whole, at three moments.

    The moments are the end of forward, the start of backward in the blocks, and its end in a
    micro-batch that is not the last.
    """
    features, rows = work.executions, work.rows
    local = 1.0 - features.expert_share * (1.0 - 1.0 / features.experts)  # of a block's weights
    block = features.gathered_bytes * local * (rows.block_trained + rows.block_frozen)
    ends = features.gathered_bytes * (
        stage.embeddings * (rows.embedding_trained + rows.embedding_frozen)
        + stage.heads * (rows.head_trained + rows.head_frozen)
        - stage.embeddings * stage.heads * rows.tied
    )
    every_block = np.maximum(stage.blocks, 1.0) * block
    keeps = features.regathered & (features.regather_ranks < features.shards)
    kept = np.where(keeps, stage.blocks * block / features.regather_ranks, 0.0)
    # FSDP2 frees a block's once it is gathered for backward, ZeRO++ holds all until the update
    held = np.where(features.stack == STACKS.index("deepspeed"), kept, 0.0)
    reducing = np.where(
        features.gradients_sharded,
        rows.block_trained * local * (features.gathered_bytes + features.reduced_bytes),
        0.0,
    )
    gathers = 1.0 * (features.weights_sharded & (features.shards > 1))
    return (
        gathers * (ends + np.where(features.regathered, block, every_block) + kept),
        gathers * (ends + np.where(features.regathered, 2 * block, every_block) + kept + reducing),
        gathers * (ends + np.where(features.stays_gathered, every_block, block) + held + reducing),
    )
