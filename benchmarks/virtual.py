"""A cluster whose time is simulated, while what its driver computes takes the time that it takes.

One group after the other asks its front for a trial, a number of seconds; when they are over by the
simulated clock, the front is told. The clock moves on to the next end of a trial, and by what each
ask and tell takes: meanwhile no other group is served, as with any driver of one thread.
"""

from __future__ import annotations

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

EPOCH = 1_790_000_000.0  # seconds; where simulated time begins


@final
class Clock:
    """Simulated seconds since the epoch; while it is entered, it runs on with a real clock.

    Args:
        real: The real clock: `time.perf_counter`, or `time.process_time` where other processes
            have the machine too, which leaves out what is waited for a disk.
    """

    def __init__(self, real: Callable[[], float] = time.perf_counter) -> None:
        self._real = real
        self._at = EPOCH
        self._since: float | None = None
        self.ran_seconds = 0.0  # while it was entered

    def __call__(self) -> float:
        return self._at if self._since is None else self._at + self._real() - self._since

    def move_to(self, at: float) -> None:
        """Goes there, unless it is later already."""
        self._at = max(self._at, at)

    def pass_by(self, seconds: float) -> None:
        """Lets what was measured elsewhere take its time here."""
        self._at += seconds

    def __enter__(self) -> Clock:
        self._since = self._real()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._since is not None
        taken = self._real() - self._since
        self._at, self._since = self._at + taken, None
        self.ran_seconds += taken


class AbstractFront(ABC):
    """Hands out trials and receives their results; enters the clock for what it computes."""

    @abstractmethod
    def ask(self, group: int) -> float | None:
        """A trial for a group: the seconds that it takes; None: there are no more."""

    @abstractmethod
    def tell(self, group: int, began: float, ended: float) -> None:
        """The group's trial has ended; simulated seconds since the epoch."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """The trials that ran; moments are simulated."""

    groups: int
    ran: list[tuple[float, float]] = field(default_factory=list)  # of each: began, ended

    @property
    def busy_share(self) -> float:
        """The share of the groups' time in which trials ran, while trials were handed out.

        From the moment when the first trial ended: by then a driver that keeps up has given one
        to each group.
        """
        first = min(end for _, end in self.ran)
        last = max(began for began, _ in self.ran)
        within = sum(max(min(end, last) - max(began, first), 0.0) for began, end in self.ran)
        return within / self.groups / (last - first)

    @property
    def trial_seconds(self) -> float:
        """Seconds that a trial takes in the mean."""
        return sum(end - began for began, end in self.ran) / len(self.ran)


def simulate(front: AbstractFront, groups: int, clock: Clock) -> Tally:
    """Runs trials until the front has no more.

    A group whose trial has ended reports, and gets its next trial, before an unused group.
    """
    tally, running = Tally(groups=groups), list[tuple[float, float, int]]()
    fresh, more = list(range(groups))[::-1], True
    while running or (fresh and more):
        if running and (running[0][0] <= clock() or not fresh or not more):
            ended, began, group = heapq.heappop(running)
            clock.move_to(ended)
            front.tell(group, began, ended)
            tally.ran.append((began, ended))
        else:
            group = fresh.pop()
        seconds = front.ask(group) if more else None
        if seconds is None:
            more = False
        else:
            heapq.heappush(running, (clock() + seconds, clock(), group))
    return tally
