"""Jobs to tune: specifications with their spaces, and the ending of each plan's trials."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

from benchmarks.outcomes import COSTS, measured
from orchestrator.core.placement import Node
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import GIB, SweepSpec
from search_spaces.trial import (
    Costs,
    Crashed,
    Diverged,
    Fingerprint,
    Measured,
    Outcome,
    OutOfMemory,
    TimedOut,
    TrialRequest,
)

LIMIT_BYTES = GIB // 2
NOISE = 0.03  # standard deviation of the logarithm of a plan's speed between its trials
RANKS = 2
CLUSTER = ClusterFacts(device="cpu", slots=RANKS, memory_limit_bytes=LIMIT_BYTES)
_MODEL = ModelFacts(
    name="llama-tiny",
    architecture="LlamaForCausalLM",
    parameters=2_100_000,
    blocks=4,
    attentions=("eager", "sdpa"),
    packing=("eager", "sdpa"),
)
_LOSSES = tuple(6.9 - 0.05 * step for step in range(14))


@dataclass(frozen=True)
class Job:
    """A specification with its space.

    Attributes:
        spec: The specification; its study has no folder of its own.
        space: The plans that may be tried.
        nodes: The nodes that the cluster has when nothing is lost.
        groups: Most groups at the same time.
    """

    spec: SweepSpec
    space: Space
    nodes: tuple[Node, ...]
    groups: int


def draw_job(random: Random, folder: str, *, real_sampler: bool) -> Job:
    """Returns one of the jobs."""
    return _job(random.randrange(64), folder, "plimsoll" if real_sampler else "random")


@lru_cache(maxsize=256)
def _job(number: int, folder: str, sampler: str) -> Job:
    random = Random(number)
    groups = random.choice([1, 2, 2, 3, 4])
    share = random.random() < 0.2
    cluster: dict[str, Any] = {
        "workers": RANKS,
        "memory_gib": 0.5,
        "groups": groups,
        "wait_minutes": random.choice([1, 5]),
        "start_minutes": 2,
        "share_nodes": share,
    }
    budget: dict[str, Any] = {
        "trials": random.choice([2, 5, 8, 12, 60]),
        "minutes": random.choice([10, 60, 1000]),
        "trial_seconds": 60,
    }
    if random.random() < 0.2:
        budget["patience"] = 4
    if random.random() < 0.1:
        budget["gpu_hours"] = 0.1
    spec = SweepSpec.model_validate(
        {
            "model": "llama-tiny",
            "data": {"lengths": {16: 1.0, 64: 2.0, 128: 1.0}},
            "cluster": cluster,
            "train": {"global_batch": 16, "sequence_length": 128, "precision": "fp32"},
            "space": {
                "micro_batch": [1, 2, 4, 8][: random.randint(1, 4)],
                "checkpoint_ratio": [0.0, 0.5, 1.0][: random.randint(1, 3)],
                "attention": ["sdpa"],
                "batching": ["padded"],
                "zero_stage": [0, 2],
            },
            "budget": budget,
            "objective": {
                "metric": random.choice(["samples_per_second", "samples_per_second", "headroom"]),
                "prefer": random.choice(["speed", "speed", "headroom"]),
            },
            "validation": {
                "enabled": random.random() < 0.6,
                "tries": 2,
                "repeats": random.choice([0, 3, 7]),
            },
            "study": {
                "folder": folder,
                "sampler": sampler,
                "wait_minutes": 10,
                "warm_start": False,
            },
        }
    )
    space = build_space(RuleContext(spec=spec, model=_MODEL, cluster=CLUSTER), RANKS)
    return Job(spec=spec, space=space, nodes=_nodes(random, groups), groups=groups)


def _nodes(random: Random, groups: int) -> tuple[Node, ...]:
    count = groups + random.randint(0, 1)
    slots = random.choice([1, 1, 2, 4])
    count = count * 2 if slots == 1 else count
    return tuple(
        Node(
            id=f"node-{at}",
            name=f"host-{at}",
            slots=slots,
            address=f"host-{at}:1",
        )
        for at in range(count)
    )


@dataclass(frozen=True)
class Ending:
    """The end of a trial of a plan if no fault occurs."""

    outcome: Outcome
    seconds: float


def ending_of(seed: int, request: TrialRequest, deadline_seconds: float) -> Ending:
    """Returns what becomes of a trial: the same for each trial of a plan, but for its speed."""
    random = Random(f"{seed} {request.plan.key} {request.validation}")
    seconds = random.uniform(5, 40)
    draw = random.random()
    if draw < 0.7 or (request.plan.micro_batch == 1 and draw < 0.9):
        return Ending(_measured(seed, request, random), seconds)
    if draw < 0.82:
        return Ending(_out_of_memory(random), seconds)
    if draw < 0.88:
        return Ending(_crashed("exception", f"ValueError: {random.randrange(3)}"), seconds)
    if draw < 0.91:
        return Ending(_crashed("worker_died", "killed"), seconds)
    if draw < 0.94:
        return Ending(_crashed("device_error", "Xid 79"), seconds)
    if draw < 0.97:
        return Ending(Diverged(step=3, loss="nan", costs=COSTS), seconds)
    late = TimedOut(deadline_seconds=deadline_seconds, detail="running did not finish")
    return Ending(late, deadline_seconds)


def rate_of(seed: int, plan: Plan) -> float:
    """Returns the speed of a plan in samples per second."""
    return round(10 + 50 * Random(f"{seed} {plan.key} rate").random(), 6)


def _crashed(cause: Any, detail: str) -> Crashed:
    return Crashed(cause=cause, rank=0, phase="forward", detail=detail)


def _out_of_memory(random: Random) -> OutOfMemory:
    return OutOfMemory(
        where="device",
        wanted_bytes=int(LIMIT_BYTES * random.uniform(1.01, 2)),
        limit_bytes=LIMIT_BYTES,
        rank=0,
        phase="forward",
        detail="out of memory",
        costs=_residual(random),
    )


def _residual(random: Random) -> Costs:
    return replace(COSTS, residual_bytes=LIMIT_BYTES // 2 if random.random() < 0.1 else 0)


def _measured(seed: int, request: TrialRequest, random: Random) -> Measured:
    rate = rate_of(seed, request.plan)
    rate *= math.exp(Random(f"{seed} {request.number}").gauss(0, NOISE))
    losses = _LOSSES
    if request.validation:
        rate *= random.choice([0.5, 0.99, 1.0, 1.01, 1.0, 1.0])
        losses = tuple(2 * loss for loss in _LOSSES) if random.random() < 0.1 else _LOSSES
    return measured(
        rate,
        batch=16,
        tokens=68,
        half_width=0.015,
        peak_bytes=int(LIMIT_BYTES * random.choice([0.3, 0.6, 0.8, 0.97])),
        limit_bytes=LIMIT_BYTES,
        losses=losses,
        costs=_residual(random),
    )


FINGERPRINT = Fingerprint(
    device="cpu",
    device_name="virtual",
    device_memory_bytes=8 * GIB,
    hosts=1,
    python="3.11",
    versions=(("torch", "2"),),
)
