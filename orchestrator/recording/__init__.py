"""Recordings: every legal plan of a space, measured several times, as one table."""

from orchestrator.recording.run import MOST_PLANS, Recorded, Request, record_plans

__all__ = ["MOST_PLANS", "Recorded", "Request", "record_plans"]
