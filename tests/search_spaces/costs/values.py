"""Small footprint for manual calculations, and a device."""

from dataclasses import replace
from typing import Any

from search_spaces.costs.footprint import (
    BlockKind,
    Extent,
    Footprint,
    Matmul,
    Part,
    Pass,
    Peak,
    Variant,
)
from search_spaces.costs.plan_encoding import plan_features
from search_spaces.costs.plan_features import PlanFeatures
from search_spaces.costs.workload import Workload, workload_of
from search_spaces.facts import ExpertFacts, ModelFacts
from search_spaces.hardware.catalogue import known_device
from search_spaces.hardware.device import Device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from tests.plans import ddp_plan

BLOCKS = 8
BLOCK_WEIGHTS = 1_000_000
END_WEIGHTS = 500_000
EXPERT_WEIGHTS = 800_000  # of a block
MIB = 2**20


def _one_matmul(element_bytes: int) -> Matmul:
    """Square projection of a sample's 1,024 tokens, which tensor ranks split."""
    return Matmul(
        batch=Extent(fixed=1),
        rows=Extent(per_sample=1024),
        columns=Extent(split_fixed=1024),
        inner=Extent(fixed=1024),
        element_bytes=element_bytes,
    )


def a_part(weights: float, element_bytes: int = 2) -> Part:
    forward = Pass(
        matmuls=(_one_matmul(element_bytes),),
        traffic_bytes=Extent(per_sample=4 * MIB),
        launches=10,
        exchanged_bytes=Extent(per_sample=2 * MIB),
        exchanges=2,
        transient_bytes=Peak(lines=(Extent(per_sample=3 * MIB),)),
    )
    return Part(
        trained=Extent(split_fixed=weights),
        saved_bytes=Extent(per_sample=10 * MIB),
        kept_bytes=Extent(per_sample=4 * MIB),
        input_bytes=Extent(per_sample=2 * MIB),
        forward=forward,
        backward=replace(forward, matmuls=(_one_matmul(element_bytes),) * 2, launches=20),
        recomputed=Pass(traffic_bytes=Extent(per_sample=4 * MIB), launches=5),
        largest_weight=weights,
    )


def a_variant(compute: str, split: str) -> Variant:
    size = 4 if compute == "fp32" else 2
    return Variant(
        attention="sdpa",
        compute=compute,  # type: ignore[arg-type]
        split=split,  # type: ignore[arg-type]
        embedding=a_part(END_WEIGHTS, size),
        blocks=(BlockKind(indices=tuple(range(BLOCKS)), part=a_part(BLOCK_WEIGHTS, size)),),
        head=a_part(END_WEIGHTS, size),
    )


FOOTPRINT = Footprint(
    model="by hand",
    digest="0",
    tokens=1024,
    depth=BLOCKS,
    tied_parameters=0,
    variants=tuple(
        a_variant(compute, split)
        for compute in ("fp32", "autocast", "cast")
        for split in ("none", "tensor", "sequence")
    ),
)
WEIGHTS = BLOCKS * BLOCK_WEIGHTS + 2 * END_WEIGHTS
FACTS = ModelFacts(
    name="by hand",
    architecture="ByHand",
    parameters=WEIGHTS,
    blocks=BLOCKS,
    attentions=("sdpa",),
    packing=(),
    block_parameters=(BLOCK_WEIGHTS,) * BLOCKS,
    embedding_parameters=END_WEIGHTS,
    head_parameters=END_WEIGHTS,
)
MIXTURE = replace(
    FACTS,
    experts=ExpertFacts(count=16, layers=BLOCKS, per_token=2, parameters=BLOCKS * EXPERT_WEIGHTS),
)
DEVICE: Device = known_device("A100-80GB")


def a_plan(**knobs: Any) -> Plan:
    return ddp_plan(**{"micro_batch": 2, "precision": "bf16", "data": 1} | knobs)


def executions(*plans: Plan) -> PlanFeatures:
    return plan_features(PlanTable.of(plans), MIXTURE, FOOTPRINT)


def work(*plans: Plan, footprint: Footprint = FOOTPRINT, device: Device = DEVICE) -> Workload:
    return workload_of(footprint, device, plan_features(PlanTable.of(plans), MIXTURE, footprint))
