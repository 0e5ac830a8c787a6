"""Layout of ranks: pipeline stage, data rank and tensor rank of each rank of a plan."""

from dataclasses import dataclass

from search_spaces.plan import Plan

DRAW_STRIDE = 1_000_003  # a prime, so that the seeds of ranks are far apart
MESH_DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")  # the last one varies fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCoordinates:
    """Coordinates of a rank; each counts from 0.

    Ranks with the same `data` see the same samples; they differ in `stage` and `tensor`.
    """

    stage: int  # among the ranks that split the stack of blocks
    data: int  # among the ranks that split the global batch
    tensor: int  # among the ranks that split each block


def mesh_shape(plan: Plan) -> tuple[int, int, int, int]:
    """Returns the ranks along each of `MESH_DIMENSIONS`; their product is the plan's world size.

    Data ranks are replicas if nothing is sharded, else `replicas` groups of shards. Tensor ranks
    are neighbours, since they communicate most; pipeline stages are furthest apart.
    """
    replicate = plan.data if plan.zero_stage == 0 else plan.replicas
    return (plan.pipeline, replicate, plan.data // replicate, plan.tensor)


def rank_coordinates(plan: Plan, rank: int) -> RankCoordinates:
    """Returns the coordinates of a rank."""
    row, tensor = divmod(rank, plan.tensor)
    stage, data = divmod(row, plan.data)
    return RankCoordinates(stage=stage, data=data, tensor=tensor)


def draw_seed(seed: int, place: int) -> int:
    """Returns the seed of what a rank draws while it trains, such as dropout masks.

    Args:
        seed: `train.seed`.
        place: 0 and up; ranks that hold the same samples and layers have the same.
    """
    # torch's generator for CPUs reads 32 bits
    return (seed + DRAW_STRIDE * place) % 2**32
