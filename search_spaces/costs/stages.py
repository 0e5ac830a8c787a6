"""Stages of pipelines: blocks, ends and parameters of a rank, a row for each plan."""

from dataclasses import dataclass

import numpy as np

from search_spaces.costs.plan_features import Numbers
from search_spaces.costs.workload import Workload

STAGES = ("first", "middle", "last")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageParts:
    """Parts of a pipeline rank, as counts, and its micro-batches in flight."""

    embeddings: Numbers
    blocks: Numbers
    heads: Numbers
    in_flight: Numbers


def stage_of(work: Workload, name: str) -> StageParts:
    """Returns the first, the fullest middle or the last rank of each pipeline."""
    features = work.executions
    one_end = (features.pipeline == 1) | features.v_shaped  # the first rank has the head
    unsplit = features.pipeline == 1
    count, depth = features.accumulation.astype(float), features.pipeline.astype(float)
    chunks = features.chunks.astype(float)
    # interleaved 1F1B: Narayanan et al. 2021, arXiv:2104.04473, section 2.2
    most = np.where(chunks > 1, ((chunks + 1) * depth - 1) / chunks, depth)  # on the first rank
    before = {"first": 0.0 * depth, "middle": 1.0 + 0.0 * depth, "last": depth - 1}[name]
    blocks = {
        "first": features.first_blocks,
        "middle": features.middle_blocks,
        "last": features.last_blocks,
    }[name]
    least = np.where(features.even_in_flight > 0, features.even_in_flight, most - before)
    in_flight = np.where(features.gpipe, count, np.minimum(count, np.maximum(least, 1)))
    return StageParts(
        embeddings=np.full(len(work), float(name == "first")),
        blocks=blocks,
        heads={"first": one_end * 1.0, "middle": 0.0 * depth, "last": ~one_end * 1.0}[name],
        in_flight=np.where(unsplit, 1.0, in_flight),
    )


def stage_parameters(work: Workload, stage: StageParts) -> tuple[Numbers, Numbers]:
    """Returns a rank's trained and frozen parameters, tied ones once, without quantized ones."""
    rows = work.rows

    def held(embedding: Numbers, block: Numbers, head: Numbers) -> Numbers:
        return stage.embeddings * embedding + stage.blocks * block + stage.heads * head

    tied, trains = stage.embeddings * stage.heads * rows.tied, rows.head_trained > 0
    trained = held(rows.embedding_trained, rows.block_trained, rows.head_trained)
    frozen = held(rows.embedding_frozen, rows.block_frozen, rows.head_frozen)
    return trained - tied * trains, np.maximum(frozen - tied * ~trains, 0.0)
