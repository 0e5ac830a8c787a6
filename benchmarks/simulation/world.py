"""Virtual time, randomness and faults of one simulated sweep."""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import final

BEGAN = 1_790_000_000.0  # seconds since the epoch

# Probability of each fault at each opportunity, largest value that a seed may draw
RATES = {
    "driver_killed": 0.01,  # before or after an instruction or a write
    "group_died": 0.1,  # during a trial
    "idle_group_died": 0.15,
    "group_failed_to_start": 0.15,
    "group_silent": 0.06,  # killed after two minutes without a sign of life
    "report_lost": 0.06,
    "report_late": 0.1,
    "report_doubled": 0.1,
    "straggler": 0.1,
    "node_lost": 0.3,  # per minute
    "all_nodes_lost": 0.05,  # per minute
    "node_preempted": 0.2,  # per minute: leaves the list before its workers end
    "nodes_never_come": 0.5,  # per request to the autoscaler
    "storage_away": 0.03,  # per write, for a second to hours
    "storage_full": 0.02,
    "storage_read_only": 0.02,
    "answer_lost": 0.03,  # of a write that took effect
    "clock_jump": 0.1,  # per minute
    "stop_requested": 0.1,  # per minute
    "head_lost": 0.1,  # per minute: the watchdog ends the driver
    "second_driver": 0.1,  # per minute
    "workers_cannot_start": 0.06,  # per minute, for half a minute to half an hour
    "disk_full": 0.06,  # the same
    "lock_stolen": 0.15,  # per minute: the lock was lost, and another driver has it
}


class DriverKilled(BaseException):
    """The driver's process ends here, without cleaning up."""


@final
class World:
    """State that all parts of a simulation share.

    Attributes:
        random: Source of all randomness.
        now: Seconds of virtual time, which never jump.
        offset: What the system's clock adds to them; jumps.
        heals_at: When all faults end.
        faults: Number of faults so far, by kind.
    """

    def __init__(self, seed: int) -> None:
        """Draws the faults of a seed."""
        self.random = Random(seed)
        self.now = 0.0
        self.offset = BEGAN
        self.heals_at = self.random.choice([0.0, 500.0, 2000.0, 5000.0])
        self.faults: Counter[str] = Counter()
        self.broken_until: dict[str, float] = {}  # by the cause of crashes
        self.events = 0
        self.instructions = 0  # that the last event has caused
        # each seed has some kinds of faults only, so that rare ones are not hidden by frequent ones
        self._rates = {
            kind: most * math.exp(-2 * self.random.random())
            for kind, most in RATES.items()
            if self.random.random() < 0.6
        }
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    @property
    def clock(self) -> float:
        """Returns what the system's clock shows, in seconds since the epoch."""
        return self.now + self.offset

    @property
    def healed(self) -> bool:
        """True once no fault occurs any more."""
        return self.now >= self.heals_at

    def occurs(self, kind: str, opportunities: float = 1.0) -> bool:
        """Draws whether a fault occurs now."""
        rate = self._rates.get(kind)
        if rate is None or self.healed or self.random.random() >= rate * opportunities:
            return False
        self.faults[kind] += 1
        return True

    def breaks(self, cause: str) -> None:
        """Breaks the machine for a while."""
        self.broken_until[cause] = self.now + self.random.uniform(30, 1800)

    def is_broken(self, cause: str) -> bool:
        """Returns True while the machine is broken in this way."""
        return not self.healed and self.now < self.broken_until.get(cause, 0.0)

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Schedules an act."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    def step(self) -> None:
        """Runs the next act."""
        time, _, act = heapq.heappop(self._queue)
        self.now = max(self.now, time)
        self.events += 1
        act()

    def pass_by(self, seconds: float) -> None:
        """Lets time pass while a driver waits; what is scheduled meanwhile comes late."""
        self.now += seconds
