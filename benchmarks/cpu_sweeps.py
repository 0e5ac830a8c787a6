"""Measures plans over all engines and knobs on this machine's CPU, two ranks at a time.

    python -m benchmarks.cpu_sweeps [--plans 60] [--seed 0] [--out FILE]

The records are what forecasts for CPUs are judged by (`python -m benchmarks.cpu_forecast`): plans
drawn at random from the legal space of three models of different kinds, each run as a trial of a
sweep is. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.output import write
from orchestrator.cluster.worker_group import GroupFailed, WorkerGroup
from orchestrator.core.failures import failure_decision
from orchestrator.core.placement import Processes
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.space import build_space
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, TrialRequest
from workers.models.load import describe
from workers.probe.doctor import lacks

RANKS = 2
DEADLINE_SECONDS = 300.0
MIB = 2**20
MODELS: Mapping[str, dict[str, Any]] = {
    "llama": {
        "name": "llama-3.2-1b",
        "config": {
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "vocab_size": 4096,
        },
    },
    "gpt2": {
        "name": "gpt2",
        "config": {
            "n_embd": 192,
            "n_layer": 6,
            "n_head": 6,
            "vocab_size": 8192,
            "n_positions": 256,
        },
    },
    "bert": {
        "name": "bert-large",
        "task": "masked-lm",
        "config": {
            "hidden_size": 320,
            "intermediate_size": 1280,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "vocab_size": 2048,
            "max_position_embeddings": 256,
        },
    },
}
_SPACE: Mapping[str, Any] = {
    "engine": ["torch", "deepspeed"],
    "tensor": [1, 2],
    "sequence_parallel": [False, True],
    "pipeline": [1, 2],
    "pipeline_schedule": ["gpipe", "1f1b", "interleaved"],
    "zero_stage": [0, 1, 2, 3],
    "micro_batch": [1, 2, 4, 8, 16],
    "checkpoint_ratio": [0.0, 0.5, 1.0],
    "checkpoint_mode": ["full", "selective"],
    "offload_optimizer": ["none", "cpu"],
    "offload_parameters": ["none", "cpu"],
    "attention": ["sdpa", "eager"],
    "precision": ["fp32", "bf16"],
    "optimizer": ["adamw_fused", "adamw_foreach"],
    "gradient_as_bucket_view": [True, False],
}


def spec_of(model: str) -> SweepSpec:
    """Steps of a small model on samples of one length."""
    return SweepSpec.model_validate(
        {
            "model": MODELS[model],
            "cluster": {"device": "cpu", "workers": RANKS, "memory_gib": 4},
            "train": {"global_batch": 32, "sequence_length": 128, "precision": "fp32"},
            "space": dict(_SPACE),
            "objective": {"max_steps": 10, "max_seconds": 3, "interval": 0.03},
        }
    )


def sample(model: str, count: int, seed: int) -> tuple[Plan, ...]:
    """Draws `count` legal plans: engines and ways to split in turn, the rest at random."""
    spec = spec_of(model)
    cluster = ClusterFacts(device="cpu", slots=RANKS, memory_limit_bytes=None, lacks=lacks("cpu"))
    around = RuleContext(spec=spec, model=describe(spec.model, spec.train), cluster=cluster)
    plans = list(build_space(around, RANKS).candidates)
    rng = random.Random(seed)
    rng.shuffle(plans)
    kinds: dict[tuple[Any, ...], list[Plan]] = {}
    for plan in plans:
        kind = (plan.engine, plan.zero_stage, plan.tensor, plan.pipeline, plan.sequence_parallel)
        kinds.setdefault(kind, []).append(plan)
    chosen: list[Plan] = []
    while len(chosen) < count and any(kinds.values()):
        chosen += [rest.pop() for rest in kinds.values() if rest]
    return tuple(chosen[:count])


def measure(model: str, plans: tuple[Plan, ...]) -> Iterator[tuple[Plan, Outcome]]:
    """Runs the plans in a warm group, which is replaced where a sweep would."""
    spec = spec_of(model)
    group: WorkerGroup | None = None
    for number, plan in enumerate(plans):
        if group is None:
            group = WorkerGroup(spec, Processes.of(plan, "cpu"), "cpu", str(Path.cwd()))
        try:
            outcome = group.run(TrialRequest(number=number, plan=plan, spec=spec), DEADLINE_SECONDS)
        except GroupFailed as lost:
            outcome = lost.outcome
        yield plan, outcome
        if failure_decision(outcome).replace:
            group.kill()
            group = None
    if group is not None:
        group.stop()


def told(model: str, plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """Returns what is kept of a trial."""
    kept: dict[str, Any] = {"model": model, "plan": plan.as_dict(), "ended": outcome.kind}
    if isinstance(outcome, Measured):
        rate, memory = outcome.samples_per_second, outcome.memory
        kept |= {
            "samples_per_second": [round(v, 3) for v in (rate.low, rate.value, rate.high)],
            "step_seconds": round(outcome.step_seconds.value, 5),
            "peak_mib": round(memory.peak_bytes / MIB, 1),
        }
    return kept


def main() -> None:
    """Measures and writes the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=60, help="of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()

    import ray

    ray.init(num_cpus=2 * RANKS, include_dashboard=False, log_to_driver=False)
    records = []
    for model in given.models:
        for plan, outcome in measure(model, sample(model, given.plans, given.seed)):
            records.append(told(model, plan, outcome))
            print(len(records), records[-1]["ended"], file=sys.stderr, flush=True)
        done = given.models[: given.models.index(model) + 1]
        specs = {one: spec_of(one).model_dump(mode="json") for one in done}
        write({"ranks": RANKS, "specs": specs, "records": records}, given.out)
    ray.shutdown()


if __name__ == "__main__":
    main()
