"""Default values for the tests in this folder."""

from typing import Any

from search_spaces.facts import ClusterFacts, ModelFacts, TensorFacts
from search_spaces.rules.base import RuleContext
from search_spaces.specification.schema import SweepSpec

GLOBAL_BATCH = 32


def a_spec(**sections: Any) -> SweepSpec:
    tree = {"model": "gpt2", "train": {"global_batch": GLOBAL_BATCH, "precision": "fp32"}}
    return SweepSpec.model_validate(tree | sections)


def a_model(**facts: Any) -> ModelFacts:
    return ModelFacts(
        **{
            "name": "gpt2",
            "architecture": "GPT2LMHeadModel",
            "parameters": 124_000_000,
            "blocks": 12,
            "block_parameters": (7_000_000,) * int(facts.get("blocks", 12)),
            "embedding_parameters": 39_000_000,
            "head_parameters": 39_000_000,
            "attentions": ("sdpa", "eager"),
            "packing": ("sdpa", "eager", "flash_attention_2", "flash_attention_3"),
            "tensor": TensorFacts(divisors=(("attention heads", 12),)),
        }
        | facts
    )


def a_cluster(**facts: Any) -> ClusterFacts:
    return ClusterFacts(**{"device": "cpu", "slots": 2, "memory_limit_bytes": None} | facts)


def around(
    spec: SweepSpec | None = None,
    model: ModelFacts | None = None,
    cluster: ClusterFacts | None = None,
) -> RuleContext:
    """Returns a rule context in which `ddp_plan()` is legal."""
    lengths = {"lengths": {128: 1.0, 512: 2.0}}
    return RuleContext(
        spec=spec or a_spec(data=lengths), model=model or a_model(), cluster=cluster or a_cluster()
    )
