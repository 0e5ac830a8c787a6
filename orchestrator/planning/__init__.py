"""What `plimsoll plan` answers: forecasts of whole spaces, and what follows from them."""

from orchestrator.planning.asking import device_of, question_of, size_names
from orchestrator.planning.explained import Explained
from orchestrator.planning.learning import (
    learned_from,
    learned_from_study,
    study_device,
)
from orchestrator.planning.planned import Planned, SizeAnswer, planned_from_json, planned_to_json
from orchestrator.planning.planner import Planner
from orchestrator.planning.question import Question
from orchestrator.planning.render import render_explained, render_planned
from orchestrator.planning.tracing import Footprints
from orchestrator.planning.words import answer_sentence, enough_sentence

__all__ = [
    "Explained",
    "Footprints",
    "Planned",
    "Planner",
    "Question",
    "SizeAnswer",
    "answer_sentence",
    "device_of",
    "enough_sentence",
    "learned_from",
    "learned_from_study",
    "planned_from_json",
    "planned_to_json",
    "question_of",
    "render_explained",
    "render_planned",
    "size_names",
    "study_device",
]
