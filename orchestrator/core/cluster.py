"""Interface of the controller to the cluster."""

from abc import ABC, abstractmethod

from orchestrator.core.instructions import GroupMessage
from orchestrator.core.placement import Node, Shortfall


class AbstractCluster(ABC):
    """Nodes and worker groups. What they report comes to the controller as inputs.

    A group starts without workers. It runs one trial after the other, and keeps its workers for the
    next one. No call waits for a trial: its end comes as the input `TrialFinished` or
    `GroupsEnded`.
    """

    @abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """Returns the nodes that are up and have room for a rank."""

    @abstractmethod
    def request_capacity(self, need: Shortfall) -> None:
        """Keeps nodes up and requests the missing ones; replaces all earlier requests."""

    @abstractmethod
    def start_group(self, group: str) -> None:
        """Starts the process that runs a group's trials."""

    @abstractmethod
    def send(self, group: str, message: GroupMessage) -> None:
        """Sends a message to a group, which takes its messages in order.

        Args:
            group: Name of the group, which may not have started yet.
            message: What the group does next.
        """

    @abstractmethod
    def kill(self, group: str) -> None:
        """Ends a group that does not answer."""
