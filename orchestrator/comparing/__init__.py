"""What differs between two trials of a study, or between two studies."""

from orchestrator.comparing.comparison import comparison_to_json
from orchestrator.comparing.plans import PlansCompared, plans_compared
from orchestrator.comparing.render import render_plans, render_studies
from orchestrator.comparing.studies import StudiesCompared, studies_compared

__all__ = [
    "PlansCompared",
    "StudiesCompared",
    "comparison_to_json",
    "plans_compared",
    "render_plans",
    "render_studies",
    "studies_compared",
]
