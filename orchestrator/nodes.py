"""The nodes of a cluster, as whoever places trials sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from orchestrator.core.placement import Node


class AbstractNodes(ABC):
    """The nodes of a cluster."""

    @abstractmethod
    def up(self) -> tuple[Node, ...]:
        """Those that are up and have room for a rank."""

    @abstractmethod
    def ask_for(self, ranks: int) -> None:
        """Wants nodes for a group of so many ranks, of whoever can bring some."""
