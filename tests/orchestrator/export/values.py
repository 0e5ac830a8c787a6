"""Observations of a plan that runs correctly."""

from dataclasses import replace
from typing import Any

from orchestrator.export.observed_run import ObservedRank
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.settings.observed_run import ObservedSettings, ObservedStep
from search_spaces.trial import Estimate
from tests.workers.values import a_plan, a_spec

TRAIN = {
    **{"global_batch": 8, "sequence_length": 64, "precision": "fp32", "learning_rate": 0.002},
    **{"schedule": "linear", "warmup_steps": 2, "total_steps": 6, "grad_clip": 0.5},
    **{"weight_decay": 0.1, "decay": "stock"},
}
RATES = (0.0, 0.001, 0.002, 0.0015, 0.001)
LOSSES = (4.0, 3.0, 2.0, 1.0)
STEP_SECONDS = 0.5


def an_export(**changed: Any) -> ExportManifest:
    """Returns a manifest of two DDP ranks: 8 samples per step, 16 samples/s."""
    plan = a_plan(**changed.pop("knobs", {}))
    rate = plan.global_batch / STEP_SECONDS
    whole = ExportManifest(
        format="torchrun",
        study="nightly",
        trial=3,
        validated=True,
        command="python train.py",
        environment=(),
        device="cpu",
        plan=plan,
        train=a_spec(train=TRAIN).train,
        samples_per_second=Estimate(value=rate, low=rate * 0.99, high=rate * 1.01),
        step_seconds=Estimate(value=STEP_SECONDS, low=STEP_SECONDS, high=STEP_SECONDS),
        peak_bytes=2**30,
        losses=LOSSES,
        loss_tolerance=0.001,
        blocks=4,
        recomputed_blocks=2,
        local=True,
        files=(("train.py", "0"),),
        caveats=(),
        base="nf4",
    )
    return replace(whole, **changed)


def a_run(
    exported: ExportManifest, *, step_seconds: float = STEP_SECONDS, off: float = 0.0, **seen: Any
) -> list[ObservedRank]:
    """Returns both ranks, with losses 1 above and below the mean; `off` is added to each."""
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
        "columns": 64,
        "compute": "float32",
        "attention": "sdpa",
        "frozen": ("bfloat16", "uint8"),
        "optimizer": "AdamW fused",
        "decays": (0.0, 0.1),
        "rates": (("betas", (0.9, 0.999)), ("eps", 1e-8)),
        "clip": 0.5,
        "loss_weight": 1.0,
    } | {name: value for name, value in seen.items() if name not in ("passes", "rate")}
    passes = seen.get("passes", exported.plan.accumulation)
    losses = (9.0, *LOSSES)
    return [
        ObservedRank(
            settings=ObservedSettings(rank=rank, **settings),
            steps=tuple(
                ObservedStep(
                    at=step_seconds * number,
                    passes=passes,
                    loss=loss + off + 2 * rank - 1,
                    rate=rate * seen.get("rate", 1),
                )
                for number, (loss, rate) in enumerate(zip(losses, RATES, strict=True))
            ),
        )
        for rank in range(2)
    ]
