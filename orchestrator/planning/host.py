"""Bytes that a plan holds in host memory, which offload trades for the device's."""

from __future__ import annotations

import numpy as np

from search_spaces.forecast.executions import Numbers
from search_spaces.forecast.work import Work

_GRADIENT_BYTES = 4.0  # on the host, gradients wait in fp32 for the optimizer there


def host_bytes(work: Work) -> Numbers:
    """What one rank holds of the host's memory: states, weights and block inputs moved there.

    Of a pipeline the fullest stage counts; what lies on NVMe does not, nor do loader processes.

    Source:
        Ren et al. 2021, arXiv:2101.06840, section 3: ZeRO-Offload keeps gradients and optimizer
        states in the host's memory; Rajbhandari et al. 2021, arXiv:2104.07857, for weights.
    """
    execution, rows = work.executions, work.rows
    trained, held, blocks = _fullest(work)
    mine = trained / np.where(execution.optimizer_sharded, execution.shards, 1)
    states = np.where(execution.on_nvme, 0.0, mine * execution.state_bytes)
    states = np.where(execution.optimizer_on_host, states + mine * _GRADIENT_BYTES, 0.0)
    slices = held / np.where(execution.weights_sharded, execution.shards, 1)
    weights = np.where(execution.weights_on_host, slices * execution.weight_bytes, 0.0)
    under_way = np.minimum(execution.pipeline, execution.accumulation)
    inputs = blocks * execution.recomputed * under_way * work.parts.block_input[rows.case]
    return states + weights + np.where(execution.activations_on_host, inputs, 0.0)


def _fullest(work: Work) -> tuple[Numbers, Numbers, Numbers]:
    """Trained and all parameters, and blocks, of the stage that holds most."""
    execution, rows = work.executions, work.rows
    alone = execution.pipeline == 1
    stages = []
    for embedding, blocks, head in (
        (1.0, execution.first_blocks, alone * 1.0),
        (0.0, execution.middle_blocks, 0.0 * rows.depth),
        (0.0, np.where(alone, 0.0, execution.last_blocks), 1.0 - alone),
    ):
        both = embedding * head * rows.tied
        trained = (
            embedding * rows.embedding_trained
            + blocks * rows.block_trained
            + head * rows.head_trained
            - both * (rows.head_trained > 0)
        )
        frozen = (
            embedding * rows.embedding_frozen + blocks * rows.block_frozen + head * rows.head_frozen
        )
        stages.append(np.stack([trained, trained + frozen, blocks * np.ones(len(work))]))
    found = np.stack(stages)  # stages, quantities, plans
    which = np.argmax(found[:, 1], axis=0)
    trained, held, blocks = found[which, :, np.arange(len(work))].T
    return trained, held, blocks
