"""Actors that pass things on: trials to groups, requests to ranks, outcomes back.

Ray starts a process for each and imports this module there, so that it imports next to nothing:
with Ray Tune and Train each took three seconds of a core before the first trial could begin.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from orchestrator.core.messages import Assignment
    from search_spaces.trial import Fingerprint, Outcome, TrialRequest


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank runs."""

    worker: ActorHandle
    node: str  # its id
    pid: int
    devices: tuple[tuple[str, int], ...] = ()  # GPUs of its group there: UUID, bytes in use by then


class Order(Enum):
    """What a group is told that gets no trial."""

    LEAVE = "leave"  # there are no more
    RELEASE = "release"  # others need its nodes: it goes on without workers
    WAIT = "wait"  # nothing was decided; it asks again


class Desk:
    """Where groups get their next trial."""

    def __init__(self) -> None:
        self._given: defaultdict[str, asyncio.Queue[Assignment | Order]] = defaultdict(
            asyncio.Queue
        )
        self._beats: dict[str, tuple[float, ActorHandle]] = {}
        self._seats: dict[str, Sequence[Seat]] = {}

    async def beat(self, group: str, runner: ActorHandle, seats: Sequence[Seat] = ()) -> None:
        """A group's runner lives, and has workers there."""
        self._beats[group] = time.monotonic(), runner
        self._seats[group] = seats

    async def look(self, seconds: float) -> tuple[list[ActorHandle], dict[str, Sequence[Seat]]]:
        """Runners that were last heard of so long ago, each told of once, and all workers."""
        now = time.monotonic()
        late = [group for group, (last, _) in self._beats.items() if now - last > seconds]
        return [self._beats.pop(group)[1] for group in late], self._seats

    async def put(self, group: str, given: Assignment | Order) -> None:
        """Lays down what a group is to do next."""
        self._given[group].put_nowait(given)

    async def take(self, group: str, seconds: float) -> Assignment | Order:
        """Waits for it, so long and no longer."""
        try:
            return await asyncio.wait_for(self._given[group].get(), seconds)
        except TimeoutError:
            return Order.WAIT


class Mailbox:
    """Requests on their way to the ranks, and what comes back. Lives as long as its group."""

    def __init__(self, world_size: int) -> None:
        self._requests: list[asyncio.Queue[TrialRequest | None]]
        self._requests = [asyncio.Queue() for _ in range(world_size)]
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self._announced: dict[int, Outcome] = {}
        self._ready: asyncio.Queue[tuple[ActorHandle, Fingerprint]] = asyncio.Queue()
        self._seats: list[Seat] = []
        self._oom_kills: dict[str, int] = {}

    async def sit(self, seat: Seat) -> None:
        """A rank's process runs, and has yet to load what it needs."""
        self._seats.append(seat)

    async def seats(self) -> list[Seat]:
        """Where ranks run that came so far."""
        return self._seats

    async def count(self, node: str, oom_kills: int) -> None:
        """How often the kernel's OOM killer had struck on a node when a rank began a trial."""
        self._oom_kills[node] = oom_kills

    async def oom_kills(self) -> dict[str, int]:
        """Those of all nodes, by their ids."""
        return self._oom_kills

    async def enter(self, worker: ActorHandle, seen: Fingerprint) -> None:
        """A rank is up."""
        await self._ready.put((worker, seen))

    async def members(self) -> list[tuple[ActorHandle, Fingerprint]]:
        """All ranks, once they are up."""
        return [await self._ready.get() for _ in self._requests]

    async def next(self, rank: int) -> TrialRequest | None:
        """The next request for a rank; None asks it to leave."""
        return await self._requests[rank].get()

    async def announce(self, rank: int, outcome: Outcome) -> None:
        """A rank tells its own ending, before the ranks agree."""
        self._announced[rank] = outcome

    async def announced(self) -> list[Outcome]:
        """What the ranks told of the trial under way, in the order of ranks."""
        return [self._announced[rank] for rank in sorted(self._announced)]

    async def post(self, outcome: Outcome) -> None:
        """Rank 0 tells what the ranks agreed on."""
        await self._outcomes.put(outcome)

    async def run(self, request: TrialRequest) -> Outcome:
        """Hands a request to all ranks and waits for the outcome."""
        self._announced.clear()
        for queue in self._requests:
            queue.put_nowait(request)
        return await self._outcomes.get()

    async def dismiss(self) -> None:
        """Asks all ranks to leave."""
        for queue in self._requests:
            queue.put_nowait(None)
