"""Realistic plans, outcomes, records and events of a sweep, for tests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
from search_spaces.facts import ClusterFacts, ModelFacts, split_by_accelerator
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import GIB, SweepSpec
from search_spaces.trial import (
    Anatomy,
    Cancelled,
    Conditions,
    Costs,
    Crashed,
    Diverged,
    Estimate,
    Fingerprint,
    Measured,
    MemoryReading,
    Outcome,
    OutOfMemory,
    Phases,
    PlanForecast,
    Refused,
    Stopped,
    TimedOut,
)

BEGAN = 1_790_000_000.0  # seconds since the epoch
TRIAL_SECONDS = 6.0
LIMIT_BYTES = GIB // 2
LLAMA = ModelFacts(
    name="llama-tiny",
    architecture="LlamaForCausalLM",
    parameters=2_100_000,
    blocks=4,
    attentions=("eager", "sdpa"),
    packing=True,
    max_sequence_length=2048,
)
CPU_FINGERPRINT = Fingerprint(
    device="cpu",
    device_name="Xeon Platinum 8488C",
    device_memory_bytes=8 * GIB,
    hosts=1,
    python="3.11.7",
    versions=(("ray", "2.60.0"), ("torch", "2.13.0")),
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


def make_space(spec: SweepSpec, workers: int = 2, without: Collection[str] = ()) -> Space:
    """The space of the spec for the tiny Llama; there are no nodes of the kinds in `without`."""
    cluster = ClusterFacts(device="cpu", slots=workers, memory_limit_bytes=LIMIT_BYTES)
    apart = split_by_accelerator(
        cluster, spec, lambda kind: (0, 0) if kind in without else (workers, None)
    )
    around = RuleContext(spec=spec, model=LLAMA, cluster=apart)
    return build_space(around, workers)


def make_plan(**knobs: Any) -> Plan:
    """DDP, micro-batch 4, accumulation 2, half of the blocks recomputed; knobs may be replaced."""
    base: dict[str, Any] = {
        "zero_stage": 0,
        "micro_batch": 4,
        "accumulation": 2,
        "checkpoint_ratio": 0.5,
        "attention": "sdpa",
        "precision": "fp32",
        "batching": "packed",
        "data": 2,
    }
    return Plan(**{**base, **knobs})


def make_measured(rate: float = 40.0, share: float = 0.6, **changes: Any) -> Measured:
    """A measurement of `rate` samples/s (± 1.5 %) with a peak of `share` of the limit."""
    peak = int(share * LIMIT_BYTES)
    parts = [peak * percent // 100 for percent in (6, 6, 12)]
    anatomy = Anatomy(
        weights=parts[0],
        gradients=parts[1],
        optimizer_states=parts[2],
        activations=peak - sum(parts) - peak // 10,
        fragmentation=None,
        outside=peak // 10,
    )
    memory = MemoryReading(
        rank=1,
        limit_bytes=LIMIT_BYTES,
        peak_bytes=peak,
        reserved_bytes=peak - peak // 10,
        allocated_bytes=None,
        anatomy=anatomy,
    )
    step = 16 / rate
    base: dict[str, Any] = {
        "samples_per_second": Estimate(value=rate, low=rate * 0.985, high=rate * 1.015),
        "tokens_per_second": rate * 68.0,
        "step_seconds": Estimate(value=step, low=step * 0.985, high=step * 1.015),
        "phases": Phases(
            data=step * 0.02, forward=step * 0.3, backward=step * 0.6, optimizer=step * 0.08
        ),
        "mfu": 0.31,
        "flops_per_step": 1.4e10,
        "memory": memory,
        "conditions": make_conditions(),
        "warmup_steps": 2,
        "measured_steps": 12,
        "losses": tuple(6.9 - 0.05 * index for index in range(14)),
        "seconds_by_step": (4 * step, *[step] * 13),
        "costs": make_costs(),
    }
    return Measured(**{**base, **changes})


def make_expectation(
    rate: float | None = None, share: float = 0.5, *, step: float = 0.4, factor: float = 1.25
) -> PlanForecast:
    """Steps of `step` seconds, or `rate` samples/s, and a peak of `share` of the limit.

    `factor` leads from a value to the end of its interval.
    """
    seconds = step if rate is None else 16 / rate

    def around(value: float) -> Estimate:
        return Estimate(value=value, low=value / factor, high=value * factor)

    return PlanForecast(
        samples_per_second=around(16 / seconds),
        step_seconds=around(seconds),
        peak_bytes=around(share * LIMIT_BYTES),
        fits=0.93,
        limited_by="matmul",
        calibration_trials=5,
        uncalibrated_samples_per_second=2 * 16 / seconds,
        uncalibrated_peak_bytes=1.5 * share * LIMIT_BYTES,
    )


def make_conditions(throttled: tuple[str, ...] = ()) -> Conditions:
    """A busy CPU host without a GPU."""
    return Conditions(
        host_cpu_percent=96.5,
        host_memory_percent=31.0,
        device_utilisation_percent=None,
        device_power_watts=None,
        device_memory_bytes=None,
        throttled=throttled,
    )


def make_costs(**changes: Any) -> Costs:
    """What a short trial costs."""
    base: dict[str, Any] = {
        "build_seconds": 0.4,
        "steps_seconds": 4.8,
        "total_seconds": 5.6,
        "residual_bytes": 3 * 2**20,
    }
    return Costs(**{**base, **changes})


def make_oom(wanted: float | None = 1.3, **changes: Any) -> OutOfMemory:
    """Out of memory in the forward pass, having wanted so much of the limit."""
    base: dict[str, Any] = {
        "where": "device",
        "wanted_bytes": None if wanted is None else int(wanted * LIMIT_BYTES),
        "limit_bytes": LIMIT_BYTES,
        "rank": 0,
        "phase": "forward",
        "detail": "DefaultCPUAllocator: can't allocate memory: tried to allocate 67108864 bytes",
        "costs": make_costs(),
    }
    return OutOfMemory(**{**base, **changes})


def every_outcome() -> tuple[Outcome, ...]:
    """One or more of each kind of ending, the baseline's measurement first."""
    return (
        make_measured(18.0, 0.35),
        make_oom(1.31),
        make_measured(41.2, 0.8),
        make_measured(40.9, 0.62),
        make_measured(44.0, 0.97),  # above the line
        Crashed(
            cause="exception",
            rank=1,
            phase="build",
            detail="ValueError: [no head] size given",
            trace="Traceback (most recent call last): ...",
        ),
        TimedOut(deadline_seconds=60.0, detail="rank 1 did not answer"),
        Diverged(step=3, loss="nan", costs=make_costs()),
        make_oom(None, where="host", phase="data", rank=None, limit_bytes=None),
        Refused(rule="attention_is_offered", detail="LlamaForCausalLM has no flash attention"),
        Cancelled(cause=Stopped(by="Ctrl-C")),
    )


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
