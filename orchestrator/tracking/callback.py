"""Interface of callbacks, which observe the events of a sweep."""

from __future__ import annotations

from abc import ABC, abstractmethod

from orchestrator.core.events import Event
from orchestrator.core.state import SweepState


class AbstractCallback(ABC):
    """Receives each event with the state after it, in the driver's process.

    A callback must return at once, because it delays the next trial. Slow work belongs in a
    thread of its own that finishes in `close`.
    """

    @abstractmethod
    def on_event(self, event: Event, state: SweepState) -> None:
        """Handles an event."""

    @abstractmethod
    def close(self) -> None:
        """Finishes pending work; called once, after the last event."""
