"""Why a plan is illegal: named reasons, each one function."""

from search_spaces.rules.base import Rule, Surroundings
from search_spaces.rules.front import RULES, refusal

__all__ = ["RULES", "Rule", "Surroundings", "refusal"]
