"""Host memory that plans need: the offloaded state of all ranks of a node."""

from __future__ import annotations

import numpy as np

from search_spaces.costs.plan_features import STACKS, Numbers
from search_spaces.costs.workload import Workload

HOST_SHARE = 0.9  # of a node's memory that offload may take; the system and loaders need the rest
PINNED = 1.25
"""Pinned memory over what is asked for: torch rounds each pinned allocation up to a power of two,
so that it takes up to twice as much; 1.25 is the share of Llama 33 B's weights over eight ranks."""
_GRADIENT_BYTES = 4.0  # an optimizer on the host keeps gradients in fp32


def host_bytes(work: Workload) -> Numbers:
    """Returns the bytes that the ranks of a node offload to its memory, with pinned buffers.

    These are optimizer states, gradients, weights and block inputs; in a pipeline those of the
    fullest stage. DeepSpeed holds another copy of gradients (ZeRO-3) or weights, in the precision
    of training. Data on NVMe and loader processes do not count, and ranks on CPUs need none: their
    peak has all.

    Source:
        Ren et al. 2021, arXiv:2101.06840, section 3: ZeRO-Offload keeps gradients and optimizer
        states in the host's memory; Rajbhandari et al. 2021, arXiv:2104.07857, for weights.
        deepspeed/runtime/zero/stage3.py: grad_partitions_flat_buffer, stage_1_and_2.py:
        param_buffer_of_bit16_for_cpu_offload_groups (0.19.8). torch's CachingHostAllocator.h for
        pinned memory. DeepSpeed issue 3448: 750 to 800 GB in use where this gives 715, killed with
        600.
    """
    execution, rows = work.executions, work.rows
    trained, parameters, blocks = _fullest_stage(work)
    trained_shard = trained / np.where(execution.optimizer_sharded, execution.shards, 1)
    copies = np.where(execution.stack == STACKS.index("deepspeed"), execution.weight_bytes, 0.0)
    pinned = trained_shard * (_GRADIENT_BYTES + copies) * execution.optimizer_on_host
    states = trained_shard * execution.state_bytes
    states = np.where(execution.optimizer_on_host & ~execution.on_nvme, states, 0.0)
    weights = trained * execution.weight_bytes + (parameters - trained) * execution.frozen_bytes
    weights = weights / np.where(execution.weights_sharded, execution.shards, 1)
    pinned += weights * execution.weights_on_host
    in_flight = np.minimum(execution.pipeline, execution.accumulation)  # micro-batches
    inputs = blocks * execution.recomputed * in_flight * work.parts.block_input[rows.case]
    pinned += inputs * execution.activations_on_host
    ranks = execution.tensor * execution.pipeline * execution.data
    on_node = np.minimum(ranks, rows.node_devices)
    return np.where(rows.on_cpu > 0, 0.0, on_node * (states + PINNED * pinned))


def host_share(work: Workload) -> Numbers:
    """Returns the host memory that plans need, over what a node has for it."""
    return host_bytes(work) / (HOST_SHARE * work.rows.host_memory)


def _fullest_stage(work: Workload) -> tuple[Numbers, Numbers, Numbers]:
    """Returns trained parameters, all parameters and blocks of the stage with most parameters."""
    execution, rows = work.executions, work.rows
    one_end = (execution.pipeline == 1) | execution.v_shaped  # the first rank has the head
    stages = []
    for embedding, blocks, head in (
        (1.0, execution.first_blocks, one_end * 1.0),
        (0.0, execution.middle_blocks, 0.0 * rows.depth),
        (0.0, np.where(execution.pipeline == 1, 0.0, execution.last_blocks), 1.0 - one_end),
    ):
        tied = embedding * head * rows.tied
        trained = (
            embedding * rows.embedding_trained
            + blocks * rows.block_trained
            + head * rows.head_trained
            - tied * (rows.head_trained > 0)
        )
        frozen = (
            embedding * rows.embedding_frozen + blocks * rows.block_frozen + head * rows.head_frozen
        )
        stages.append(np.stack([trained, trained + frozen, blocks * np.ones(len(work))]))
    quantities = np.stack(stages)  # of shape (stages, quantities, plans)
    fullest = np.argmax(quantities[:, 1], axis=0)
    trained, parameters, blocks = quantities[fullest, :, np.arange(len(work))].T
    return trained, parameters, blocks
