"""Realistic plans, outcomes, records and events of a sweep, for tests."""

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.notes import Message
from orchestrator.core.reasons import BudgetSpent, Sampled
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, advance, begin
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Outcome
from tests.outcomes import CPU_FINGERPRINT, LIMIT_BYTES
from tests.plans import ddp_plan

BEGAN = 1_790_000_000.0  # seconds since the epoch
TRIAL_SECONDS = 6.0
LLAMA = ModelFacts(
    name="llama-tiny",
    architecture="LlamaForCausalLM",
    parameters=2_100_000,
    blocks=4,
    attentions=("eager", "sdpa"),
    packing=("eager", "sdpa"),
)
PROPOSED = Sampled(sampler="random")  # a reason for a trial


def make_spec(**sections: Any) -> SweepSpec:
    """The demo's spec: 24 trials, 2 workers, half a GiB each; sections may be replaced."""
    base: dict[str, Any] = {
        "model": "llama-tiny",
        "data": {"lengths": {16: 1.0, 64: 2.0, 128: 1.0}},
        "cluster": {"workers": 2, "memory_gib": 0.5},
        "train": {"global_batch": 16, "sequence_length": 128, "precision": "fp32"},
        "budget": {"trials": 24, "minutes": 10, "trial_seconds": 60},
        "validation": {"enabled": False},
    }
    return SweepSpec.model_validate({**base, **sections})


def make_space(spec: SweepSpec, workers: int = 2) -> Space:
    """The space of the spec for the tiny Llama."""
    cluster = ClusterFacts(device="cpu", slots=workers, memory_limit_bytes=LIMIT_BYTES)
    return build_space(RuleContext(spec=spec, model=LLAMA, cluster=cluster), workers)


def make_plan(**knobs: Any) -> Plan:
    """DDP, micro-batch 4, accumulation 2, half of the blocks recomputed; knobs may be replaced."""
    return ddp_plan(**{"accumulation": 2, "checkpoint_ratio": 0.5, "batching": "packed"} | knobs)


def some_plans(space: Space, count: int) -> tuple[Plan, ...]:
    """The baseline, then others spread over the space; all distinct."""
    others = [plan for plan in space.candidates if plan != space.baseline]
    stride = max(len(others) // max(count, 1), 1)
    return (space.baseline, *others[::stride])[:count]


def make_record(number: int, plan: Plan, outcome: Outcome) -> Record:
    """The record of trial `number`, one every ten seconds."""
    start = BEGAN + 10.0 + 10.0 * number
    return Record(
        number=number,
        plan=plan,
        outcome=outcome,
        reason=PROPOSED,
        started_at=start,
        ended_at=start + TRIAL_SECONDS,
        fingerprint=CPU_FINGERPRINT,
    )


def make_records(space: Space, outcomes: Sequence[Outcome]) -> tuple[Record, ...]:
    """Records of distinct plans with these outcomes, the first of the baseline plan."""
    plans = some_plans(space, len(outcomes))
    return tuple(
        make_record(number, plan, outcome)
        for number, (plan, outcome) in enumerate(zip(plans, outcomes, strict=True))
    )


def make_state(
    outcomes: Sequence[Outcome], spec: SweepSpec | None = None, study: str = "demo"
) -> SweepState:
    """The state after a sweep with these outcomes, not yet ended."""
    spec = spec or make_spec()
    space = make_space(spec)
    records = make_records(space, outcomes)
    *_, (_, state) = sweep(spec, space, records, study=study, ended=False)
    return state


def searching(
    spec: SweepSpec, space: Space, records: Sequence[Record] = (), running: Sequence[Plan] = ()
) -> SweepState:
    """The state of a driver that resumes with these records, and runs trials of these plans."""
    _, state = next(sweep(spec, space, (), before=records))
    for number, plan in enumerate(running, len(records)):
        trial = TrialStarted(
            number=number, plan=plan, reason=PROPOSED, deadline_seconds=60.0, at=BEGAN
        )
        state = advance(state, trial)
    return state


def sweep(
    spec: SweepSpec,
    space: Space,
    records: Sequence[Record],
    *,
    before: Sequence[Record] = (),
    study: str = "demo",
    ended: bool = True,
) -> Iterator[tuple[Event, SweepState]]:
    """The events of a sweep that measures `records` after `before`, each with its state."""
    began = SweepStarted(
        study=study,
        spec=spec,
        space=space,
        records=tuple(record for record in before if not record.validation),
        memory_limit_bytes=spec.memory_limit_bytes,
        at=BEGAN,
        validations=tuple(record for record in before if record.validation),
    )
    state = begin(began)
    yield began, state
    for event in _after_start(records, ended):
        state = advance(state, event)
        yield event, state


def _after_start(records: Sequence[Record], ended: bool) -> Iterator[Event]:
    yield GroupStarted(world_size=2, fingerprint=CPU_FINGERPRINT, at=BEGAN + 9.0)
    for record in records:
        yield TrialStarted(
            number=record.number,
            plan=record.plan,
            reason=record.reason,
            deadline_seconds=60.0,
            at=record.started_at,
        )
        yield TrialEnded(record=record, at=record.ended_at)
        if record.outcome.kind == "crashed":
            yield Noted(
                note=Message(text="the group was replaced after a crash"), at=record.ended_at
            )
    if ended:
        at = records[-1].ended_at + 1 if records else BEGAN + 10
        yield SweepEnded(reason=BudgetSpent(limit="trials", amount=24), at=at)
