"""One factory for plans: each test area states only the knobs in which its usual plan differs."""

from typing import Any

from search_spaces.plan import Plan


def ddp_plan(**knobs: Any) -> Plan:
    """Returns DDP on two ranks, micro-batch 4, 32 samples per step, with `knobs` changed."""
    return Plan(
        **{
            "zero_stage": 0,
            "micro_batch": 4,
            "accumulation": 4,
            "checkpoint_ratio": 0.0,
            "attention": "sdpa",
            "precision": "fp32",
            "batching": "padded",
            "data": 2,
        }
        | knobs
    )
