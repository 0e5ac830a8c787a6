"""The events of a sweep as lines of JSON, for log collectors and for whoever reads them back."""

from __future__ import annotations

from orchestrator.event_log.lines import VERSION, Line
from orchestrator.event_log.listeners import EventFile, EventStream, events_file
from orchestrator.event_log.making import line_of
from orchestrator.event_log.reading import from_json, read_events, to_json

__all__ = [
    "VERSION",
    "EventFile",
    "EventStream",
    "Line",
    "events_file",
    "from_json",
    "line_of",
    "read_events",
    "to_json",
]
