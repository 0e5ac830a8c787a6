"""The nodes of a cluster, as whoever places trials sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from orchestrator.core.needs import Need
from orchestrator.core.placement import Node


class AbstractNodes(ABC):
    """The nodes of a cluster."""

    @abstractmethod
    def up(self) -> tuple[Node, ...]:
        """Those that are up and have room for a rank."""

    @abstractmethod
    def want(self, needs: Sequence[Need]) -> None:
        """Keeps nodes, and asks whoever can bring some for what is missed.

        What was wanted before is no longer.
        """
