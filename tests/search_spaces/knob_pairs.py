"""Legal plans that differ in one knob, for tests that go through all knobs.

Knobs and values come from `Plan`, so that a new knob is tried without a change here.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any

from search_spaces.facts import ExpertFacts, TensorFacts
from search_spaces.knobs.search_defaults import CHECKPOINT_RATIOS
from search_spaces.plan import CHOICES, COUNTS, DEFAULTS, SHARES, Plan
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from tests.plans import ddp_plan
from tests.search_spaces.values import a_cluster, a_model, a_spec

GLOBAL_BATCH = 48
KNOB_NAMES = tuple(each.name for each in fields(Plan) if each.name != "accumulation")  # it follows
# Changes of another knob that rules require for a value of a knob.
TIED: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "offload_optimizer": lambda place: {"offload_parameters": place},
    "offload_parameters": lambda place: {"offload_optimizer": place},
    "sequence_parallel": lambda split: {"tensor": 2 if split else 1},
}
HOST = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
NVME = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}
ZERO = {"engine": "deepspeed"}
# Plans in which each knob is active, on GPUs unless said otherwise. A knob that is inactive in all
# of them, or has a value that rules refuse in all of them, needs another plan here.
BASES: Mapping[str, Mapping[str, Any]] = {
    "ddp": {},
    "ddp on cpu": {},
    "ddp in bf16": {"precision": "bf16"},
    "ddp in bf16, compiled": {"precision": "bf16", "compile": True},
    "ddp in one pass": {"micro_batch": 24},
    "recomputed": {"checkpoint_ratio": 1.0},
    "one rank, compiled": {"data": 1, "compile": True},
    "fsdp": {"zero_stage": 3, "data": 4},
    "fsdp, recomputed": {"zero_stage": 3, "checkpoint_ratio": 1.0},
    "fsdp on host": {"zero_stage": 3, **HOST, "pin_memory": True},
    "fsdp in bf16": {"zero_stage": 3, "precision": "bf16"},
    "fsdp in bf16 on host": {"zero_stage": 3, "precision": "bf16", **HOST, "pin_memory": True},
    "fsdp split": {"zero_stage": 3, "tensor": 2, "sequence_parallel": True},
    "fsdp in stages": {"zero_stage": 3, "pipeline": 2, "micro_batch": 2},
    "stages": {"pipeline": 2, "data": 1},
    "zero 0, compiled": {**ZERO, "compile": True},
    "zero 1 in bf16 on host": {
        **ZERO,
        **{"zero_stage": 1, "precision": "bf16", "offload_optimizer": "cpu"},
    },
    "zero 2": {**ZERO, "zero_stage": 2},
    "zero 2 in bf16": {**ZERO, "zero_stage": 2, "precision": "bf16"},
    "zero 2, recomputed": {**ZERO, "zero_stage": 2, "checkpoint_ratio": 1.0},
    "zero 3": {**ZERO, "zero_stage": 3, "data": 4},
    "zero 3 on host": {**ZERO, "zero_stage": 3, **HOST},
    "zero 3 on nvme": {**ZERO, "zero_stage": 3, **NVME},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plan, and one that differs from it in a knob and those that rules tie to it."""

    base: str  # in BASES
    knob: str
    before: Plan
    after: Plan

    @property
    def changed(self) -> frozenset[str]:
        """The knobs in which the plans differ."""
        before, after = self.before.as_dict(), self.after.as_dict()
        return frozenset(name for name in before if before[name] != after[name])

    @property
    def plans(self) -> tuple[Plan, Plan]:
        return (self.before, self.after)


@cache
def context_of(base: str) -> RuleContext:
    """Returns the machines of a plan, which lack nothing."""
    device = "cpu" if "cpu" in base else "cuda"
    return RuleContext(
        spec=a_spec(
            data={"lengths": {128: 1.0, 512: 2.0}},
            cluster={"device": device, "nvme_folder": "/mnt/nvme"},
            train={"global_batch": GLOBAL_BATCH, "precision": "fp32", "sequence_length": 512},
        ),
        model=a_model(
            attentions=CHOICES["attention"],
            vocab_size=50257,
            tensor=TensorFacts(divisors=(("attention heads", 12),), by_transformers=True),
            attention_heads=12,
            context_refusal=None,
            float8_share=1.0,
            experts=ExpertFacts(
                count=8, layers=12, per_token=2, parameters=60_000_000, kernels=True
            ),
        ),
        cluster=a_cluster(device=device, slots=8),
    )


def plan_of(**knobs: Any) -> Plan:
    """Returns a plan of the global batch; `accumulation` follows from the other knobs."""
    chosen = {"data": 2, "micro_batch": 4, **knobs}
    per_pass = chosen["micro_batch"] * chosen["data"] // chosen.get("context", 1)
    return ddp_plan(**chosen | {"accumulation": max(GLOBAL_BATCH // per_pass, 1)})


def values_of(knob: str) -> tuple[Any, ...]:
    """Returns values of a knob: all, or for counts some."""
    if knob in CHOICES:
        return CHOICES[knob]
    if knob == "micro_batch_tokens":
        return (0, 512, 1024)
    if knob in COUNTS:
        default = DEFAULTS.get(knob, 1)
        return tuple(sorted({COUNTS[knob], default, *(2, 4), 2 * default}))
    assert knob in SHARES, f"{knob} has a type without values to try: add them here"
    return CHECKPOINT_RATIOS


@cache
def pairs_of(knob: str) -> tuple[Pair, ...]:
    """Returns all pairs of legal plans that differ in the knob alone, from each base."""
    return tuple(pair for base in BASES for pair in _pairs(base, knob))


def _pairs(base: str, knob: str) -> Iterator[Pair]:
    plans = tuple(_plans(base, knob))
    for before, after in itertools.combinations(plans, 2):
        yield Pair(base=base, knob=knob, before=before, after=after)


def _plans(base: str, knob: str) -> Iterator[Plan]:
    """Yields the base, and the legal plans with other values of a knob."""
    chosen, context = BASES[base], context_of(base)
    plan = plan_of(**chosen)
    assert refusal(plan, context) is None, (base, refusal(plan, context))
    yield plan
    for value in values_of(knob):
        if value == getattr(plan, knob):
            continue
        alone = plan_of(**chosen | {knob: value})
        if refusal(alone, context) is None:
            yield alone
        elif knob in TIED:
            tied = plan_of(**chosen | {knob: value} | TIED[knob](value))
            if refusal(tied, context) is None:
                yield tied


# A plan with a knob that nothing else knows.
Planted = make_dataclass(
    "Planted",
    [("static_graph", bool, field(default=False))],
    bases=(Plan,),
    frozen=True,
    slots=True,
    kw_only=True,
)
