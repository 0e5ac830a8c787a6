"""A model whose footprint can be worked out by hand, and planning requests for it."""

from dataclasses import replace
from typing import Any

from orchestrator.forecast.request import PlanningRequest
from search_spaces.costs.calibration import Calibration, Scales
from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.footprint import BlockKind, Extent, Footprint, Matmul, Part, Pass, Variant
from search_spaces.costs.memory import CATEGORIES, MemoryCoefficients
from search_spaces.costs.model_work import ModelWork
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.costs.time import SCALES
from search_spaces.facts import ModelFacts, TensorFacts
from search_spaces.hardware.catalogue import known_device
from search_spaces.specification.schema import SweepSpec

HIDDEN, DEPTH, TOKENS, VOCABULARY = 4096, 32, 2048, 32_000
BLOCK = 12 * HIDDEN**2  # four square matrices of attention, and 4 x 2 of the rest


def matmuls(wide: int) -> tuple[Matmul, ...]:
    """A linear layer forward, from `HIDDEN` to `wide`, split among tensor ranks by its columns."""
    return (
        Matmul(
            batch=Extent(fixed=1),
            rows=Extent(per_sample=TOKENS),
            columns=Extent(split_fixed=wide),
            inner=Extent(fixed=HIDDEN),
            element_bytes=2,
        ),
    )


def backward(forward: tuple[Matmul, ...]) -> tuple[Matmul, ...]:
    """Gradients of the input and of the weight: each costs as much as forward."""
    return tuple(
        made
        for one in forward
        for made in (
            replace(one, columns=one.inner, inner=one.columns),
            replace(one, rows=one.inner, inner=one.rows),
        )
    )


def a_part(wide: int, saved: float) -> Part:
    forward = matmuls(wide)
    return Part(
        trained=Extent(split_fixed=wide * HIDDEN),
        saved_bytes=Extent(per_sample=saved),
        kept_bytes=Extent(per_sample=saved / 2),
        input_bytes=Extent(per_sample=2 * TOKENS * HIDDEN),
        forward=Pass(matmuls=forward, traffic_bytes=Extent(per_sample=saved), launches=10),
        backward=Pass(
            matmuls=backward(forward), traffic_bytes=Extent(per_sample=2 * saved), launches=20
        ),
    )


def a_footprint(wanted: tuple[VariantKey, ...]) -> Footprint:
    """The footprint of each variant, from the sizes above; recomputation frees 0.9 of a block."""
    activations = 34.0 * TOKENS * HIDDEN
    logits = 10.0 * TOKENS * VOCABULARY
    variants = [
        Variant(
            **key._asdict(),
            embedding=Part(trained=Extent(split_fixed=VOCABULARY * HIDDEN)),
            blocks=(BlockKind(indices=tuple(range(DEPTH)), part=a_part(12 * HIDDEN, activations)),),
            head=a_part(VOCABULARY, logits),
        )
        for key in wanted
    ]
    return Footprint(
        model="by-hand",
        digest="0",
        tokens=TOKENS,
        depth=DEPTH,
        tied_parameters=0,
        variants=tuple(variants),
        work=ModelWork(
            matmul_flops=6.0 * (DEPTH * BLOCK + VOCABULARY * HIDDEN),
            attention_flops=0.0,
            full_attention_flops=None,
            layers=(),
        ),
    )


def facts(**changes: Any) -> ModelFacts:
    ends = VOCABULARY * HIDDEN
    return ModelFacts(
        **{
            "name": "by-hand",
            "architecture": "ByHand",
            "parameters": DEPTH * BLOCK + 2 * ends,
            "blocks": DEPTH,
            "block_parameters": (BLOCK,) * DEPTH,
            "embedding_parameters": ends,
            "head_parameters": ends,
            "attentions": ("sdpa", "eager"),
            "packing": ("sdpa", "eager", "flash_attention_2", "flash_attention_3"),
            "vocab_size": VOCABULARY,
            "tensor": TensorFacts(divisors=(("attention heads", 32),)),
        }
        | changes
    )


def a_spec(**sections: Any) -> SweepSpec:
    tree = {
        "model": "by-hand",
        "cluster": {"device": "cuda"},
        "train": {"global_batch": 64, "sequence_length": TOKENS},
    }
    return SweepSpec.model_validate(tree | sections)


def a_question(ranks: tuple[int, ...] = (8,), gpu: str = "H100", **fields: Any) -> PlanningRequest:
    device = known_device(gpu)
    return PlanningRequest(
        **{
            "spec": a_spec(),
            "model": facts(),
            "device": device,
            "ranks": ranks,
            "limit_bytes": device.memory_bytes,
        }
        | fields
    )


def a_calibration() -> Calibration:
    """The coefficients in the code, without fitted ones."""
    return Calibration(
        time=TimeCoefficients(),
        time_scales=Scales.before(0.15, (0.2,) * len(SCALES), 0.05),
        memory=MemoryCoefficients(),
        memory_scales=Scales.before(0.03, (0.1,) * len(CATEGORIES), 0.03),
        own_deviation_factor=1.0,
        provenance="made up",
    )
