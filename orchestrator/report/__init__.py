"""What a sweep found, told from its study alone."""

from __future__ import annotations

from orchestrator.report.render import render_report

__all__ = ["render_report"]
