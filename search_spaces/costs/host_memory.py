"""Host memory that plans need: the offloaded state of all ranks of a node."""

import numpy as np

from search_spaces.costs.plan_features import STACKS, Flags, Numbers
from search_spaces.costs.stages import STAGES, stage_of, stage_parameters
from search_spaces.costs.workload import Workload
from search_spaces.settings.deepspeed_config import MOST_LIVE

HOST_SHARE = 0.9  # of a node's memory that offload may take; the system and loaders need the rest
PINNED = 1.25
"""Pinned memory over the size of tensors that are pinned one by one, as torch rounds each up to a
power of two: the share of Llama 33 B's weights over eight ranks."""
_GRADIENT_BYTES = 4.0  # DeepSpeed's optimizer on the host keeps gradients in fp32


def host_bytes(work: Workload) -> Numbers:
    """Returns the bytes that the ranks of a node offload to its memory, with pinned buffers.

    These are optimizer states, gradients, weights and block inputs; in a pipeline those of the
    fullest stage. DeepSpeed holds another copy of gradients (ZeRO-3) or weights, in the precision
    of training; it pins weights one by one before it flattens them, which torch never gives back.
    Data on NVMe and loader processes do not count, and ranks on CPUs need none: their peak has all.

    Source:
        Ren et al. 2021, arXiv:2101.06840, section 3; Rajbhandari et al. 2021, arXiv:2104.07857.
        deepspeed/runtime/zero/stage3.py: grad_partitions_flat_buffer, _move_to_flat_buffer;
        stage_1_and_2.py: single_partition_of_fp32_groups, accumulated_grads_in_cpu (0.19.8).
        torch's CachingHostAllocator.h for pinned memory. DeepSpeed issue 3448: 750 to 800 GB in use
        where this gives 749, killed with 600.
    """
    execution, rows = work.executions, work.rows
    trained, frozen, blocks = _fullest_stage(work)
    pinned, deepspeed = execution.pinned, execution.stack == STACKS.index("deepspeed")
    each = np.where(pinned, PINNED, 1.0)
    shard = trained / np.where(execution.optimizer_sharded, execution.shards, 1)
    gradient_bytes = np.where(deepspeed, _GRADIENT_BYTES, execution.gradient_bytes)
    weights, gradients = shard * execution.weight_bytes, shard * gradient_bytes
    zero_3 = execution.weights_sharded | execution.weights_on_host
    groups = np.where(zero_3, np.maximum(shard / MOST_LIVE, 1), 1)
    flat_gradients = groups * _rounded(gradients / groups, pinned)
    accumulated = each * weights * (execution.accumulation > 1)
    # up to ZeRO-2, fp32 weights are pinned too
    copies = np.where(zero_3, 0.0, flat_gradients - gradients + accumulated)
    copies += _rounded(weights, pinned) + flat_gradients
    needed = np.where(deepspeed, copies, each * gradients) * execution.optimizer_on_host
    needed += shard * execution.state_bytes * (execution.optimizer_on_host & ~execution.on_nvme)
    frozen_shard = frozen / np.where(execution.weights_sharded, execution.shards, 1)
    whole = frozen_shard * execution.frozen_bytes + weights * (pinned | ~deepspeed)
    flat = deepspeed * _rounded(weights, np.ones_like(pinned))
    needed += (each * whole + flat) * execution.weights_on_host
    in_flight = np.minimum(execution.pipeline, execution.accumulation)  # micro-batches
    inputs = blocks * execution.recomputed * in_flight * work.parts.block_input[rows.case]
    needed += PINNED * inputs * execution.activations_on_host
    ranks = execution.tensor * execution.pipeline * execution.data
    return np.where(rows.on_cpu > 0, 0.0, np.minimum(ranks, rows.node_devices) * needed)


def host_share(work: Workload) -> Numbers:
    """Returns the host memory that plans need, over what a node has for it."""
    return host_bytes(work) / (HOST_SHARE * work.rows.host_memory)


def _rounded(size: Numbers, pinned: Flags) -> Numbers:
    return np.where(pinned, 2 ** np.ceil(np.log2(np.maximum(size, 1.0))), size)


def _fullest_stage(work: Workload) -> tuple[Numbers, ...]:
    """Returns trained and frozen parameters and blocks of the stage with most parameters."""
    stages = (stage_of(work, name) for name in STAGES)
    held = np.array([[*stage_parameters(work, stage), stage.blocks] for stage in stages])
    fullest = np.argmax(held[:, :2].sum(axis=1), axis=0)
    return tuple(held[fullest, :, np.arange(len(work))].T)
