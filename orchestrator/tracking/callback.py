"""Who wants to know what happens in a sweep."""

from __future__ import annotations

from abc import ABC, abstractmethod

from orchestrator.core.events import Event
from orchestrator.core.state import SweepState


class AbstractCallback(ABC):
    """Is told each event, with the state after it, in the driver's process.

    A listener must return at once: it stands in the way of the next trial. What takes longer
    it does in a thread of its own, and finishes in `close`.
    """

    @abstractmethod
    def on_event(self, event: Event, state: SweepState) -> None:
        """Takes note of an event."""

    @abstractmethod
    def close(self) -> None:
        """Finishes what is left to do; called once, after the last event."""
