"""Time forecast: seconds of an optimizer step by term, from peak rates and the shares reached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.micro_batch import (
    COMPUTING,
    COMPUTING_SCALES,
    PIECES,
    PieceSeconds,
    piece_seconds,
    reached_share,
)
from search_spaces.costs.plan_features import STACKS, Flags, Numbers, PlanFeatures
from search_spaces.costs.stages import STAGES, stage_of, stage_parameters
from search_spaces.costs.workload import Workload

# stacks whose hooks run in Python for each weight with sharded gradients
_PYTHON_HOOK_STACKS = [STACKS.index(name) for name in ("deepspeed", "megatron-deepspeed")]
_AROUND = (
    *("data_collectives", "pipeline_bubble", "pipeline_hops", "optimizer", "offload", "overhead"),
)
TERMS = (*COMPUTING, *_AROUND)
SCALES = (*COMPUTING_SCALES, *_AROUND)
"""Scales that measurements correct: those of a term, or of a part of it."""


def _ring(
    work: Workload, coefficients: TimeCoefficients, ranks: Numbers, stride: Numbers
) -> tuple[Numbers, Numbers]:
    """Returns the bytes per second of a ring of data ranks, and the latency of a collective."""
    rows = work.rows
    local = np.clip(rows.node_devices / stride, 1, ranks)
    inside = ranks * stride <= rows.node_devices
    share = coefficients.gather_share * np.where(rows.slow_link > 0, coefficients.slow_gather, 1.0)
    within = reached_share(share, rows.measured) * rows.link
    across = np.minimum(within, coefficients.network_share * rows.network * local)
    waits = coefficients.collective_seconds * np.log2(np.maximum(ranks, 2)) * np.where(inside, 1, 2)
    waits = np.maximum(waits, rows.collective_seconds)
    return np.where(inside, within, across), np.where(ranks > 1, waits, 0.0)


def data_collectives(
    work: Workload, coefficients: TimeCoefficients, split: _SlowestRank
) -> tuple[Numbers, Numbers]:
    """Forecasts the communication of data ranks in a step.

    Args:
        work: The plans.
        coefficients: Shares of peaks that are reached.
        split: The slowest rank.

    Returns:
        Seconds per step that are exposed, and seconds that are hidden behind computation.
    """
    features = work.executions
    count = features.accumulation.astype(float)
    tensor, shards = features.tensor.astype(float), features.shards.astype(float)
    replicas = features.data / shards
    across, across_waits = _ring(work, coefficients, replicas, tensor * shards)
    width = np.where(features.gathered_bytes > 0, features.gathered_bytes, features.weight_bytes)
    calls = features.middle_blocks + features.first_blocks
    trained_experts = split.blocks * features.expert_share * work.rows.block_trained
    experts = trained_experts + split.blocks * features.expert_share * work.rows.block_frozen

    def gather_from(ranks: Numbers) -> Numbers:
        return _shared_seconds(work, coefficients, ranks, width * split.held, width * experts)

    gather = gather_from(shards)
    sent = (features.reduced_bytes * numbers for numbers in (split.trained, trained_experts))
    scatter = _shared_seconds(work, coefficients, shards, *sent)
    others = (replicas - 1) / replicas
    average = 2 * split.trained * features.reduced_bytes * others / (across * shards)
    average = average + np.where(replicas > 1, across_waits * calls, 0.0)
    passes = np.where(features.every_pass, count, 1.0)
    whole = features.weights_sharded
    # sharded weights are gathered in forward and backward, others once per step after the update
    in_forward, in_backward = _gathers(features)
    forward = np.where(whole, gather * in_forward, 0.0)
    again = gather_from(features.regather_ranks.astype(float))
    backward = np.where(whole, again * in_backward, 0.0)
    updated = np.where(~whole & features.optimizer_sharded, gather, 0.0)
    reduced = np.where(
        features.gradients_sharded | features.optimizer_sharded, scatter, 2 * scatter
    )
    reduced = np.where(shards > 1, reduced, 0.0) * passes
    hides_forward = split.computing * in_forward / 3
    hides_backward = split.computing * passes * 2 / 3
    overlaps = features.overlapped & (work.rows.on_cpu == 0)  # a core computes or communicates
    exposed_forward = _exposed(forward, hides_forward, overlaps, coefficients)
    exposed_backward = _exposed(
        backward + reduced + average, hides_backward, overlaps, coefficients
    )
    hooked = features.gradients_sharded & np.isin(features.stack, _PYTHON_HOOK_STACKS)
    hooks = coefficients.hook_seconds * np.where(hooked, features.first_blocks * passes, 0.0)
    exposed = exposed_forward + exposed_backward + updated + hooks
    total = forward + backward + reduced + average + updated + hooks
    return exposed + token_exchange(work, coefficients, split), total - exposed


def _shared_seconds(
    work: Workload,
    coefficients: TimeCoefficients,
    ranks: Numbers,
    whole_bytes: Numbers,
    expert_bytes: Numbers,
) -> Numbers:
    """Forecasts seconds of a gather or a scatter of a model, block by block, over data ranks.

    Args:
        work: The plans.
        coefficients: Shares of peaks that are reached.
        ranks: Neighbouring data ranks that share it.
        whole_bytes: Bytes of the model.
        expert_bytes: Of its experts; a rank has some, and shares them with the ranks that have the
            same ones.
    """
    features = work.executions
    stride, experts = features.tensor.astype(float), features.experts.astype(float)
    rate, waits = _ring(work, coefficients, ranks, stride)
    alike = np.maximum(ranks / experts, 1.0)
    alike_rate, alike_waits = _ring(work, coefficients, alike, stride * experts)
    seconds = (whole_bytes - expert_bytes) * (ranks - 1) / ranks / rate
    seconds = seconds + expert_bytes / experts * (alike - 1) / alike / alike_rate
    waits = waits + np.where(experts > 1, alike_waits * features.expert_layers, 0.0)
    return seconds + waits * (features.middle_blocks + features.first_blocks)


def token_exchange(work: Workload, coefficients: TimeCoefficients, split: _SlowestRank) -> Numbers:
    """Forecasts the seconds per step in which tokens go to their experts and to heads of attention.

    A layer of experts sends them twice in forward and twice in backward, and a recomputed one in
    forward again; before that, ranks tell each other how many. Context ranks exchange queries,
    keys, values and results, each of the size of a hidden state or less. Nothing hides it.
    """
    features, rows = work.executions, work.rows
    hidden = work.parts.block_input[rows.case] * features.filled / features.longest_filled
    seconds = np.zeros(len(work))
    for ranks, sends, bytes_sent, counts in (
        (features.experts, 2 * features.expert_layers, 2 * features.routed * hidden, 1.0),
        (features.context, np.full(len(work), 4.0), 4 * hidden, 0.0),
    ):
        rate, waits = _ring(work, coefficients, ranks.astype(float), features.tensor.astype(float))
        once = bytes_sent * (ranks - 1) / ranks / rate + sends * waits
        passes = 2 + features.recomputed  # no way of recomputation keeps what was sent
        told = counts * waits * features.expert_layers * (1 + features.recomputed)
        seconds = seconds + np.where(ranks > 1, passes * once + told, 0.0)
    return split.blocks * features.accumulation * seconds


def _gathers(features: PlanFeatures) -> tuple[Numbers, Numbers]:
    """Returns how often a step gathers sharded weights for forward, and for backward.

    Weights that stay gathered after backward are gathered again for backward if forward freed them.
    A pipeline's forward passes that follow one another gather too, but as many of its backward
    passes then need not, so that the sum is the same.
    """
    count = features.accumulation.astype(float)
    return np.where(features.stays_gathered, 1.0, count), np.where(features.regathered, count, 0.0)


def _exposed(
    seconds: Numbers, computing: Numbers, overlaps: Flags, coefficients: TimeCoefficients
) -> Numbers:
    hidden = np.minimum(seconds, computing) * max(1 - coefficients.exposed, 0.0)
    return seconds - np.where(overlaps, hidden, 0.0)


def pipeline_hop_seconds(work: Workload, coefficients: TimeCoefficients) -> Numbers:
    """Forecasts the seconds per step in which stages send hidden states and gradients."""
    features, rows = work.executions, work.rows
    stride = features.tensor * features.data
    rate = np.where(stride * 2 <= rows.node_devices, rows.link, rows.network)
    hidden = work.parts.block_input[rows.case] * features.filled / features.longest_filled
    hop = hidden / (coefficients.hop_share * rate) + coefficients.collective_seconds
    count = 2.0 * (features.accumulation * features.chunks + features.pipeline - 1)
    return np.where(features.pipeline > 1, count * hop, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTerms:
    """Forecast of an optimizer step: a row for each plan."""

    seconds: Numbers  # scaled, of shape (plans, TERMS)
    slopes: Numbers  # derivatives by the logarithms of scales, of shape (plans, SCALES)
    recomputed: Numbers  # share of the computing terms that recomputation takes
    hidden: Numbers  # seconds of communication hidden behind computation


def step_terms(
    work: Workload, coefficients: TimeCoefficients, scales: Numbers | None = None
) -> StepTerms:
    """Forecasts the terms of every plan.

    Args:
        work: The plans.
        coefficients: Shares of peaks that are reached, and additional times.
        scales: Logarithms of `SCALES`; 0 by default.
    """
    factors = np.ones(len(SCALES)) if scales is None else np.exp(scales)
    pieces = piece_seconds(work, coefficients, factors[: len(COMPUTING_SCALES)])
    split = _slowest_rank(work, pieces)
    micro, slopes = (_of_step(work, each, split) for each in (pieces.terms, pieces.slopes))
    features = work.executions
    bubble = np.maximum((split.whole - split.computing) * features.bubble, 0.0)
    exposed, hidden = data_collectives(work, coefficients, split)
    on_cpu = work.rows.on_cpu > 0
    around = {
        "data_collectives": exposed * np.where(on_cpu, coefficients.host_talk, 1.0),
        "pipeline_bubble": np.where(features.pipeline > 1, coefficients.bubble * bubble, 0.0),
        "pipeline_hops": pipeline_hop_seconds(work, coefficients),
        "optimizer": _update(work, coefficients, split.trained),
        "offload": _offload(work, coefficients, split)
        * np.where(on_cpu, coefficients.host_offload, 1.0),
        "overhead": _overhead(work, coefficients),
    }
    others = np.stack([around[name] for name in _AROUND], axis=1) * factors[-len(_AROUND) :]
    factor = _software_factor(work, coefficients)
    return StepTerms(
        seconds=np.hstack([micro, others]) * factor[:, None],
        slopes=np.hstack([slopes, others]) * factor[:, None],
        recomputed=split.recomputed / np.maximum(split.computing, 1e-12),
        hidden=hidden * factor,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SlowestRank:
    """A pipeline's slowest rank, and seconds of a micro-batch: a row for each plan."""

    embeddings: Numbers  # counts
    blocks: Numbers
    heads: Numbers
    trained: Numbers  # parameters
    held: Numbers  # the same with frozen ones
    computing: Numbers
    whole: Numbers  # on all ranks together
    recomputed: Numbers


def _slowest_rank(work: Workload, pieces: PieceSeconds) -> _SlowestRank:
    seconds = pieces.terms.sum(axis=2)[work.rows.case]
    embedding, block, full, selective, head = seconds.T
    features, rows = work.executions, work.rows
    repeated = features.recomputed * (full + features.selective * (selective - full))
    block = block + repeated
    stages = [stage_of(work, name) for name in STAGES]
    computing = np.array(
        [each.embeddings * embedding + each.blocks * block + each.heads * head for each in stages]
    )
    slowest = np.where(features.pipeline == 1, 0, np.argmax(computing, axis=0))
    trained, frozen = zip(*(stage_parameters(work, stage) for stage in stages), strict=True)
    n_blocks = np.choose(slowest, [stage.blocks for stage in stages]) * 1.0
    return _SlowestRank(
        embeddings=np.choose(slowest, [stage.embeddings for stage in stages]),
        blocks=n_blocks,
        heads=np.choose(slowest, [stage.heads for stage in stages]),
        trained=np.choose(slowest, trained),
        held=np.choose(slowest, trained) + np.choose(slowest, frozen),
        computing=np.choose(slowest, computing),
        whole=embedding + rows.depth * block + head,
        recomputed=n_blocks * repeated,
    )


def _of_step(work: Workload, pieces: Numbers, split: _SlowestRank) -> Numbers:
    """Returns seconds per step on the slowest rank, of shape (plans, terms), from pieces'."""
    features = work.executions
    counts = (split.embeddings, split.blocks, split.heads)
    n_embedding, n_block, n_head = (number[:, None] for number in counts)
    embedding, block, full, selective, head = (
        pieces[:, index][work.rows.case] for index in range(len(PIECES))
    )
    repeated = full + features.selective[:, None] * (selective - full)
    block = block + features.recomputed[:, None] * repeated
    micro = n_embedding * embedding + n_block * block + n_head * head
    return micro * features.accumulation[:, None]


def _overhead(work: Workload, coefficients: TimeCoefficients) -> Numbers:
    """Forecasts what a step costs besides its work: more where ranks wait for each other."""
    features = work.executions
    ranks = (features.tensor * features.pipeline * features.data).astype(float)
    return (
        coefficients.step_seconds
        + coefficients.pass_seconds * features.accumulation
        + coefficients.rank_seconds * np.log2(ranks)
    )


def _software_factor(work: Workload, coefficients: TimeCoefficients) -> Numbers:
    """Returns the factor of a step's seconds by training software and number of nodes."""
    features, rows = work.executions, work.rows
    nodes = np.maximum(features.tensor * features.pipeline * features.data / rows.node_devices, 1)
    stack = np.asarray(coefficients.stacks)[features.stack]
    jitter: Numbers = 1 + coefficients.node_jitter * np.log2(nodes)
    return jitter * reached_share(stack, rows.measured)


def _update(work: Workload, coefficients: TimeCoefficients, trained: Numbers) -> Numbers:
    """Forecasts the optimizer on the device, which reads and writes states and weights once."""
    features, rows = work.executions, work.rows
    updated = trained / np.where(features.optimizer_sharded, features.shards, 1)
    traffic = updated * (
        2 * features.state_bytes + 2 * features.weight_bytes + features.gradient_bytes
    )
    seconds = traffic / (reached_share(coefficients.update_share, rows.measured) * rows.bandwidth)
    return np.where(features.optimizer_on_host, 0.0, seconds)


def _offload(work: Workload, coefficients: TimeCoefficients, split: _SlowestRank) -> Numbers:
    """Forecasts the seconds per step of offload: traffic with host and drives, and host updates."""
    features, rows = work.executions, work.rows
    count = features.accumulation.astype(float)
    rate = reached_share(coefficients.pcie_share, rows.measured) * rows.pcie
    updated = split.trained / np.where(features.optimizer_sharded, features.shards, 1)
    states = updated * (features.reduced_bytes + features.weight_bytes) / rate
    touched = updated * (2 * features.state_bytes + 2 * features.gradient_bytes)
    host_rate = reached_share(coefficients.host_update_share, rows.measured) * rows.host_bandwidth
    states = states + touched / host_rate
    drive = np.where(features.on_nvme, 2 * updated * features.state_bytes / rows.nvme, 0.0)
    frozen = split.held - split.trained
    held = split.trained * features.weight_bytes + frozen * features.frozen_bytes
    held = held / np.where(features.weights_sharded, features.shards, 1)
    in_forward, in_backward = _gathers(features)
    weights = (in_forward + in_backward) * held / rate
    inputs = work.parts.block_input[rows.case] * features.filled / features.longest_filled
    activations = 2 * count * split.blocks * features.recomputed * inputs / rate
    return (
        np.where(features.optimizer_on_host, states + drive, 0.0)
        + np.where(features.weights_on_host, weights, 0.0)
        + features.activations_on_host * activations
    )
