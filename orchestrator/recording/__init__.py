"""Recordings: every legal plan of a space, measured several times, as one table."""

from orchestrator.recording.run import Recorded, Request, chosen, record_plans

__all__ = ["Recorded", "Request", "chosen", "record_plans"]
