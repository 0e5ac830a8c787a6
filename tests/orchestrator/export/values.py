"""What a witness might have seen of a plan that runs as it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.export.verify import SeenRank
from search_spaces.settings.export_manifest import Exported
from search_spaces.settings.observed_run import SeenSettings, SeenStep
from search_spaces.trial import Estimate
from tests.workers.values import a_plan

LOSSES = (4.0, 3.0, 2.0, 1.0)
STEP_SECONDS = 0.5


def an_export(**changed: Any) -> Exported:
    """Of two ranks of DDP: 8 samples a step, so 16 samples/s."""
    plan = a_plan(**changed.pop("knobs", {}))
    rate = plan.global_batch / STEP_SECONDS
    whole = Exported(
        format="torchrun",
        study="nightly",
        trial=3,
        proven=True,
        command="python train.py",
        environment=(),
        device="cpu",
        plan=plan,
        samples_per_second=Estimate(value=rate, low=rate * 0.99, high=rate * 1.01),
        step_seconds=Estimate(value=STEP_SECONDS, low=STEP_SECONDS, high=STEP_SECONDS),
        peak_bytes=2**30,
        losses=LOSSES,
        loss_tolerance=0.001,
        blocks=4,
        recomputed_blocks=2,
        local=True,
        files=(),
        unsaid=(),
    )
    return replace(whole, **changed)


def a_run(
    exported: Exported, *, step_seconds: float = STEP_SECONDS, off: float = 0.0, **seen: Any
) -> list[SeenRank]:
    """Of both ranks, whose losses lie 1 above and below the mean; `off` is added to each."""
    settings = {
        "ranks": 2,
        "wrapper": "ddp",
        "zero_stage": 0,
        "replicas": 1,
        "offload_parameters": "none",
        "offload_optimizer": "none",
        "wrapped": (),
        "recomputed": (("Block", 2),),
        "compiled": 0,
        "rows": exported.plan.micro_batch,
        "compute": "float32",
        "attention": "sdpa",
        "optimizer": "AdamW fused",
    } | {name: value for name, value in seen.items() if name != "passes"}
    passes = seen.get("passes", exported.plan.accumulation)
    losses = (9.0, *LOSSES)
    return [
        SeenRank(
            settings=SeenSettings(rank=rank, **settings),
            steps=tuple(
                SeenStep(at=step_seconds * number, passes=passes, loss=loss + off + 2 * rank - 1)
                for number, loss in enumerate(losses)
            ),
        )
        for rank in range(2)
    ]
