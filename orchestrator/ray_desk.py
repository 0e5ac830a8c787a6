"""The driver's end of the desk where groups get their trials, and what it does when they die."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from orchestrator.mailboxes import Desk, Order, Seat
from orchestrator.ray_leftovers import bury
from orchestrator.ray_nodes import HEAD_SHARE
from orchestrator.trials import Assignment

_LOOK_SECONDS = 5.0
_BURY_SECONDS = 180.0  # for a process to start and end others on all nodes, some busy


class DeskLost(Exception):
    """The desk died or hangs: no group can be given a trial any more."""


class AbstractDesk(ABC):
    """Where what groups are to do is handed in."""

    actor: ActorHandle  # where groups take it

    @abstractmethod
    def put(self, group: str, given: Assignment | Order) -> None:
        """Lays down what a group is to do next."""

    @abstractmethod
    def bury(self, group: str) -> tuple[str, ...]:
        """Ends what a group left whose runner is gone.

        Returns:
            What does not end, a sentence each.
        """


@final
class FrontDesk(AbstractDesk):
    """Hands trials to groups through an actor, ends runners that are silent, buries the dead.

    Trials and starts have deadlines by their runner's clock; this is the one for the runner itself:
    one that hangs would keep its trial, and the sweep, for ever. Ray ends what a runner started
    when it is gone, but neither what workers forked nor the room that it held.
    """

    def __init__(self, silent_seconds: float) -> None:
        """Starts the actor.

        Args:
            silent_seconds: After which what is not heard of is ended.
        """
        self.actor = ray.remote(num_cpus=0, resources=HEAD_SHARE)(Desk).remote()
        self.lost = False
        self._seconds = silent_seconds
        self._seats: dict[str, Sequence[Seat]] = {}  # of workers, as their groups last said
        self._next = self._heard = time.monotonic()

    def put(self, group: str, given: Assignment | Order) -> None:
        self._ask(self.actor.put.remote(group, given), self._seconds)

    def look(self) -> None:
        """Ends runners that are silent; to be called often.

        Raises:
            DeskLost: If the desk itself is.
        """
        now = time.monotonic()
        if not self.lost and now >= self._next:
            self._next = now + _LOOK_SECONDS
            said = self._ask(self.actor.look.remote(self._seconds), _LOOK_SECONDS)
            if said is not None:
                silent, self._seats = said
                for runner in silent:
                    ray.kill(runner)
        if self.lost:
            raise DeskLost

    def bury(self, group: str) -> tuple[str, ...]:
        seats = self._seats.pop(group, ())
        task = ray.remote(num_cpus=0, max_retries=0, resources=HEAD_SHARE)(bury)
        try:
            told: tuple[str, ...] = ray.get(task.remote(seats), timeout=_BURY_SECONDS)
        except RayError as error:
            return (f"what a group left may be there still: {type(error).__name__}",)
        return told

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self.actor)

    def _ask(self, reference: Any, seconds: float) -> Any:
        """What the actor answers; None if it does not."""
        try:
            answer = ray.get(reference, timeout=seconds)
        except RayError as error:
            silent = time.monotonic() - self._heard > self._seconds
            self.lost |= silent or isinstance(error, RayActorError)
            return None
        self._heard = time.monotonic()
        return answer
