"""Plans, outcomes and quantities in words: one wording for views, reports and MLflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from search_spaces.estimate import Estimate
from search_spaces.knobs import KNOBS
from search_spaces.outcome import Measured, Outcome, OutOfMemory, Refused, sentence
from search_spaces.plan import Plan
from search_spaces.space import Space
from search_spaces.spec.schema import GIB, SweepSpec

STRATEGIES: Mapping[int, str] = MappingProxyType({0: "ddp", 2: "fsdp zero2", 3: "fsdp zero3"})

KIND_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "measured": "measured",
        "out_of_memory": "out of memory",
        "timed_out": "timed out",
        "crashed": "crashed",
        "refused": "refused",
        "diverged": "diverged",
        "cancelled": "cancelled",
    }
)

_SIGNIFICANT_DIGITS = 4


def _checkpointing(plan: Plan) -> str:
    return f"ckpt {100 * plan.checkpoint_ratio:.0f} %" if plan.checkpoint_ratio else ""


# The ranks need no word of their own: a sweep's global batch is fixed, so they follow
# from micro-batch and accumulation.
_KNOB_WORDS: Mapping[str, Callable[[Plan], str]] = MappingProxyType(
    {
        "zero_stage": lambda plan: STRATEGIES[plan.zero_stage],
        "micro_batch": lambda plan: f"micro {plan.micro_batch} x {plan.accumulation}",
        "checkpoint_ratio": _checkpointing,
        "attention": lambda plan: plan.attention,
        "batching": lambda plan: plan.batching,
        "precision": lambda plan: plan.precision,
    }
)


def plan_words(plan: Plan, *, omit: Collection[str] = ()) -> str:
    """The plan as a person would say it: `ddp micro 4 x 4 ckpt 50 % sdpa packed fp32`.

    Args:
        plan: The plan; no word on checkpointing means none, `micro 4 x 4` is micro-batch
            times accumulation.
        omit: Names of knobs to leave out, since every plan around has the same value.
    """
    words = (say(plan) for name, say in _KNOB_WORDS.items() if name not in omit)
    return " ".join(word for word in words if word)


def fixed_knobs(space: Space) -> frozenset[str]:
    """Names of the knobs that have one value in the whole space; never micro_batch."""
    fixed = {name for name, values in space.domains if len(values) == 1}
    return frozenset(fixed - {"micro_batch"})


def fixed_words(space: Space) -> str:
    """What all plans of the space have in common, `sdpa fp32`; empty if that is nothing."""
    omit = frozenset(_KNOB_WORDS) - fixed_knobs(space)
    return plan_words(space.baseline, omit=omit)


def lossy_words(plan: Plan, spec: SweepSpec) -> str:
    """Which knobs change the numerics that the spec trains with, `bf16`; empty if none does."""
    changed = (
        str(getattr(plan, knob.name))
        for knob in KNOBS
        if knob.lossy(getattr(plan, knob.name), spec)
    )
    return " ".join(changed)


def outcome_words(outcome: Outcome) -> str:
    """The outcome's sentence on one line, labelled where the device had lowered its clocks."""
    words = " ".join(sentence(outcome).split())  # a crash's reason may span lines
    if isinstance(outcome, Measured) and outcome.conditions.throttled:
        return f"{words} (throttled: {', '.join(outcome.conditions.throttled)})"
    return words


def brief_outcome(outcome: Outcome) -> str:
    """The outcome in fewer words, for narrow tables."""
    match outcome:
        case OutOfMemory(where=where):
            excess = outcome.excess
            wanted = "" if excess is None else f", wanted {100 * (1 + excess):.0f} %"
            return f"out of {'' if where == 'device' else f'{where} '}memory{wanted}"
        case Refused(rule=rule):
            return f"refused: {rule}"
        case _:
            return outcome_words(outcome)


def decimals_of(value: float) -> int:
    """Decimals that show `value` with four significant digits."""
    if not value or not math.isfinite(value):
        return 0
    return max(_SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))), 0)


def number(value: float) -> str:
    """A number with four significant digits and no exponent."""
    return f"{value:,.{decimals_of(value)}f}"


def spread(estimate: Estimate) -> str:
    """Value ± half of the interval, in the value's unit and decimals."""
    half = (estimate.high - estimate.low) / 2
    decimals = max(decimals_of(estimate.value) - 1, 0)
    return f"{estimate.value:,.{decimals}f} ± {half:,.{decimals}f}"


def gib(size_bytes: float) -> str:
    """Bytes as GiB without the unit: `0.412`, `3.41`, `74.2`."""
    size = size_bytes / GIB
    decimals = 3 if abs(size) < 1 else 2 if abs(size) < 10 else 1
    return f"{size:.{decimals}f}"


def duration(seconds: float) -> str:
    """Seconds in words: `45 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = round(max(seconds, 0.0))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return f"{rest} s"


def plural(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counts_words(counts: Mapping[str, int]) -> str:
    """How trials ended: `9 measured, 2 out of memory`."""
    order = [kind for kind in KIND_WORDS if counts.get(kind)]
    return ", ".join(f"{counts[kind]} {KIND_WORDS[kind]}" for kind in order)
