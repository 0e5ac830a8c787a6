"""What a rule is: it looks at a plan and its surroundings and may object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What a rule may look at beside the plan."""

    spec: SweepSpec
    model: ModelFacts
    cluster: ClusterFacts


# Returns one sentence with the numbers, or None if it has no objection. It reads knobs from the
# plan itself (`plan.tensor`), never through a helper: the reference of the knobs is made of that.
Rule = Callable[[Plan, RuleContext], str | None]
