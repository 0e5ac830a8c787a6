"""A sweep as its own run in MLflow shows it: parameters, metrics and tags. Plain values."""

from __future__ import annotations

from orchestrator.core.objective import best, counts, record_of, score, throughput
from orchestrator.core.state import SweepState
from orchestrator.mlflow_tracking.fields import MAX_TAG, rounded
from orchestrator.report.format import lossy_words
from orchestrator.report.sweep_tables import speedup
from orchestrator.report.sweep_text import answer
from search_spaces.spec.schema import GIB, SweepSpec


def study_params(spec: SweepSpec, memory_limit_bytes: int | None) -> dict[str, str]:
    """What the sweep is about; what may change from one driver to the next is left out."""
    limit = "all there is" if memory_limit_bytes is None else f"{memory_limit_bytes / GIB:g}"
    return {
        "model": spec.model.name,
        "task": spec.model.task,
        "data": ", ".join(spec.data.files)[:MAX_TAG] or spec.data.kind,
        "global_batch": str(spec.train.global_batch),
        "sequence_length": str(spec.train.sequence_length),
        "optimizer": spec.train.optimizer,
        "precision": spec.train.precision,
        "memory_limit_gib": limit,
        "objective": spec.objective.metric,
        "headroom": str(spec.objective.headroom),
        "sampler": spec.study.sampler,
    }


def sweep_metrics(state: SweepState, ended: int) -> dict[str, float]:
    """Where the sweep stood after its first `ended` trials."""
    records = state.records[:ended]
    counted = counts(records)
    metrics = {
        "trials": float(ended),
        "trials_measured": float(counted.get("measured", 0)),
        "trials_out_of_memory": float(counted.get("out_of_memory", 0)),
    }
    top = best(records, state.goal)
    if top is not None:
        reached = score(top, state.goal)
        metrics |= {"best_samples_per_second": throughput(top), "best_objective": reached}
        metrics["best_trial"] = float(top.number)
    if gain := speedup(top, record_of(records, state.space.baseline)):
        metrics |= {"speedup": gain.value, "speedup_low": gain.low, "speedup_high": gain.high}
    return {name: rounded(value) for name, value in metrics.items()}


def sweep_tags(state: SweepState) -> dict[str, str]:
    """What the sweep came to, in the columns of its trials, and which trial was proven."""
    proof, top = state.proven, state.best
    tags = {
        "kind": "sweep",
        "reason": answer(state)[:MAX_TAG],
        "proven": "no" if proof is None else f"trial {proof.number}",
    }
    # empty, and not left out: an earlier end of the same study may have named one
    return tags | {"lossy": "" if top is None else lossy_words(top.plan, state.spec)}
