"""What a person sees while a sweep runs."""

from __future__ import annotations

from orchestrator.view.choose import make_view
from orchestrator.view.live import LiveView
from orchestrator.view.plain import PlainView
from orchestrator.view.plan_words import plan_words

__all__ = ["LiveView", "PlainView", "make_view", "plan_words"]
