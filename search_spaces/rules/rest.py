"""No plan has two names: what does not matter stands at rest."""

from __future__ import annotations

from search_spaces.knobs.registry import KNOBS, always
from search_spaces.plan import RESTS, Plan
from search_spaces.rules.base import Rule, Surroundings

# The search itself never gives such plans: this is for those that a user types.
_CONDITIONAL = tuple(
    (knob.name, RESTS[knob.name], knob.matters, knob.looks_at)
    for knob in KNOBS
    if knob.matters is not always
)


def knob_at_rest(plan: Plan, _: Surroundings) -> str | None:
    """A knob that changes nothing given the others would give the same plan another name."""
    for name, rest, matters, looks_at in _CONDITIONAL:
        value = getattr(plan, name)
        if value == rest or matters({other: getattr(plan, other) for other in looks_at}):
            continue
        others = ", ".join(f"{other} {getattr(plan, other)}" for other in looks_at)
        return f"{name} {value} changes nothing with {others}: it must be {rest}"
    return None


RULES: tuple[Rule, ...] = (knob_at_rest,)
