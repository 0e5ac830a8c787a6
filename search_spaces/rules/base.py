"""Type of a rule: a function of a plan and its context that may object."""

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """Inputs of a rule besides the plan."""

    spec: SweepSpec
    model: ModelFacts
    cluster: ClusterFacts


# Returns one sentence with the numbers, or None without an objection. A rule reads knobs from the
# plan itself (`plan.tensor`), never through a helper: the knob reference is generated from that.
Rule = Callable[[Plan, RuleContext], str | None]
