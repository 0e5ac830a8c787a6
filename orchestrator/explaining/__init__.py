"""Why a study's answer is what it is, what happened to a trial, why a plan was not tried."""

from orchestrator.explaining.asked import knobs_asked
from orchestrator.explaining.explanation import Explanation, explanation_to_json
from orchestrator.explaining.fate import Fate, fate, trial_named
from orchestrator.explaining.ground import Ground, ground_of
from orchestrator.explaining.render import render_fate, render_untried, render_won
from orchestrator.explaining.untried import Untried, why_not_tried
from orchestrator.explaining.won import Won, why_it_won

__all__ = [
    "Explanation",
    "Fate",
    "Ground",
    "Untried",
    "Won",
    "explanation_to_json",
    "fate",
    "ground_of",
    "knobs_asked",
    "render_fate",
    "render_untried",
    "render_won",
    "trial_named",
    "why_it_won",
    "why_not_tried",
]
