"""Studies of a tiny, really traced model, made without running trials."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import BudgetSpent, Sampled, StopReason
from orchestrator.study.study import Study
from orchestrator.workspace import save_spec
from search_spaces.facts import planned_cluster
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.space import build_space
from search_spaces.specification.load import parse_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Outcome
from tests.orchestrator.records import BEGAN, make_plan, make_record
from tests.outcomes import CPU_FINGERPRINT
from tests.workers.values import LLAMA
from workers.prepare import prepare_driver

TREE: dict[str, Any] = {
    "model": LLAMA,
    "data": {"lengths": {16: 1.0, 64: 2.0, 128: 1.0}},
    "cluster": {"device": "cpu", "workers": 2, "memory_gib": 0.5},
    "train": {"global_batch": 16, "sequence_length": 128, "precision": "fp32"},
    "space": {
        "zero_stage": [0, 3],
        "micro_batch": [1, 2, 4, 8],
        "checkpoint_ratio": [0.0, 0.5],
        "attention": ["sdpa"],
        "batching": ["padded", "packed"],
    },
    "validation": {"enabled": False},
    "tracking": {"enabled": False},
}
ENDED = BudgetSpent(limit="trials", amount=3)


def planned_context(spec: SweepSpec, ranks: int) -> RuleContext:
    """Returns the context of rules on a cluster of exactly `ranks` ranks."""
    model, _ = prepare_driver(spec)
    return RuleContext(spec=spec, model=model, cluster=planned_cluster(spec, ranks))


def a_plan(**knobs: Any) -> Plan:
    """Returns the baseline, with `knobs` changed."""
    base = {"micro_batch": 1, "accumulation": 8, "checkpoint_ratio": 0.0, "batching": "padded"}
    if "micro_batch" in knobs:
        base["accumulation"] = 8 // knobs["micro_batch"]
    return make_plan(**{**base, **knobs})


def a_study(
    tried: Sequence[tuple[Plan, Outcome]],
    name: str = "demo",
    ended: StopReason = ENDED,
    **sections: Any,
) -> Path:
    """Makes a study of these trials; returns its specification file in the current directory."""
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump({**TREE, **sections}), encoding="utf-8")
    spec = parse_spec(path.read_text(encoding="utf-8"), source=path.name)
    save_spec(spec, name)
    _tell(spec, name, tried, ended)
    return path


def _tell(
    spec: SweepSpec, name: str, tried: Sequence[tuple[Plan, Outcome]], ended: StopReason
) -> None:
    study = Study(spec, name, build_space(planned_context(spec, 2), 2))
    for plan, outcome in tried:
        number = study.ask(plan, Sampled(sampler="random"))
        made = make_record(number, plan, outcome)
        study.tell(replace(made, fingerprint=CPU_FINGERPRINT))
    study.keep_end(SweepEnded(reason=ended, at=BEGAN + 1000.0))
