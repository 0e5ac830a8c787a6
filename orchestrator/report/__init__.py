"""What a sweep found, told from its study alone."""

from __future__ import annotations

from orchestrator.report.document import report_document
from orchestrator.report.sweep_text import all_failed, render_report, short_of_goal

__all__ = ["all_failed", "render_report", "report_document", "short_of_goal"]
