"""Ray actors that carry messages: instructions to worker groups, requests to ranks, and outcomes.

Ray starts a process for each actor and imports this module there, so the module imports almost
nothing. With Ray Tune and Ray Train, each actor took three seconds of a core before the first
trial could begin. Handles of actors travel pickled, as whoever unpickles one loads its class.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from orchestrator.core.instructions import GroupMessage
    from search_spaces.trial import Activity, Fingerprint, Outcome, TrialRequest


AGREE_SECONDS = 20.0  # for the other ranks to end, once one has announced a failure


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """Process of one rank, and the node that it runs on."""

    worker: bytes  # pickled handle
    node: str  # its id
    pid: int
    started_at: float  # seconds since the epoch


class GroupQueues:
    """Queues of messages for worker groups, and the heartbeats of their runners."""

    def __init__(self) -> None:
        self._queues: defaultdict[str, asyncio.Queue[GroupMessage]] = defaultdict(asyncio.Queue)
        self._heartbeats: dict[str, tuple[float, bytes]] = {}
        self._expired: set[str] = set()
        self._activities: dict[str, Activity] = {}
        self._worker_processes: dict[str, Sequence[WorkerProcess]] = {}

    async def beat(
        self, group: str, runner: bytes, worker_processes: Sequence[WorkerProcess] = ()
    ) -> None:
        """Records a heartbeat of a group's runner, a pickled handle, and where its workers run."""
        self._heartbeats[group] = time.monotonic(), runner
        self._worker_processes[group] = worker_processes

    async def silent_runners(
        self, seconds: float
    ) -> tuple[list[bytes], dict[str, Sequence[WorkerProcess]]]:
        """Finds runners without a heartbeat.

        Args:
            seconds: Longest time between two heartbeats.

        Returns:
            Runners that are silent for longer or whose group expired, each reported once for a
            heartbeat; the workers of all groups.
        """
        now = time.monotonic()
        silent = [
            group
            for group, (last, _) in self._heartbeats.items()
            if group in self._expired or now - last > seconds
        ]
        return [self._heartbeats.pop(group)[1] for group in silent], self._worker_processes

    async def tell(self, group: str, activity: Activity) -> None:
        """Keeps what a group does now, in place of what it did."""
        self._activities[group] = activity

    async def activities(self) -> list[Activity]:
        """Returns what groups have told since the last call."""
        told, self._activities = self._activities, {}
        return list(told.values())

    async def expire(self, group: str) -> None:
        """Lets a group's runner count as silent from now on, even one that has yet to start."""
        self._expired.add(group)

    async def put(self, group: str, message: GroupMessage) -> None:
        """Queues a message for a group."""
        self._queues[group].put_nowait(message)

    async def take(self, group: str, seconds: float) -> GroupMessage | None:
        """Returns the next message for a group; None if none comes within `seconds`."""
        try:
            return await asyncio.wait_for(self._queues[group].get(), seconds)
        except TimeoutError:
            return None


def tell_driver(queues: ActorHandle, group: str, activity: Activity) -> None:
    """Tells the driver what a group does, without waiting."""
    queues.tell.remote(group, activity)


class GroupChannel:
    """Requests to the ranks of one group, and their answers. Lives as long as its group."""

    def __init__(self, world_size: int) -> None:
        self._requests: list[asyncio.Queue[TrialRequest | None]]
        self._requests = [asyncio.Queue() for _ in range(world_size)]
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self._announced: dict[int, Outcome] = {}
        self._failed = asyncio.Event()
        self._ready: asyncio.Queue[Fingerprint] = asyncio.Queue()
        self._ready_count = 0
        self._worker_processes: list[WorkerProcess] = []
        self._oom_kills: dict[str, int] = {}

    async def register(self, process: WorkerProcess) -> int:
        """Records that a rank's process runs, and has yet to load what it needs; counts them."""
        self._worker_processes.append(process)
        return len(self._worker_processes)

    async def worker_processes(self) -> list[WorkerProcess]:
        """Returns the processes of the ranks that have started so far."""
        return self._worker_processes

    async def count(self, node: str, oom_kills: int) -> None:
        """Records how many processes the kernel's OOM killer had killed on a node so far."""
        self._oom_kills[node] = oom_kills

    async def oom_kills(self) -> dict[str, int]:
        """Returns the counts of all nodes when their last trial began, by the node's id."""
        return self._oom_kills

    async def set_ready(self, fingerprint: Fingerprint) -> int:
        """Records that a rank is ready for trials; returns how many have been since a start."""
        await self._ready.put(fingerprint)
        self._ready_count += 1
        return self._ready_count

    async def members(self) -> list[Fingerprint]:
        """Waits until all ranks are ready, and returns their fingerprints."""
        return [await self._ready.get() for _ in self._requests]

    async def next(self, rank: int) -> TrialRequest | None:
        """Waits for the next request to a rank; None tells it to leave."""
        return await self._requests[rank].get()

    async def announce(self, rank: int, outcome: Outcome) -> None:
        """Records the outcome of one rank, before the ranks agree on one."""
        from search_spaces.trial import Agreed  # loaded by now, to unpickle it

        self._announced[rank] = outcome
        if not isinstance(outcome, Agreed):  # of which all ranks know
            self._failed.set()

    async def announced(self) -> list[Outcome]:
        """Returns what ranks announced of the current trial, in the order of ranks."""
        return [self._announced[rank] for rank in sorted(self._announced)]

    async def post(self, outcome: Outcome) -> None:
        """Takes the outcome that the ranks agreed on, from rank 0."""
        await self._outcomes.put(outcome)

    async def run(self, request: TrialRequest) -> Outcome | None:
        """Sends a request to all ranks and waits for the outcome.

        Returns:
            The outcome on which the ranks agreed; None if a rank announced a failure, and the
            others did not end within `AGREE_SECONDS`.
        """
        self._announced.clear()
        self._failed.clear()
        for queue in self._requests:
            queue.put_nowait(request)
        agreed = asyncio.ensure_future(self._outcomes.get())
        failed = asyncio.ensure_future(self._failed.wait())
        await asyncio.wait({agreed, failed}, return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        await asyncio.wait({agreed}, timeout=AGREE_SECONDS)
        if agreed.done():
            return agreed.result()
        agreed.cancel()
        return None

    async def dismiss(self) -> None:
        """Tells all ranks to leave."""
        for queue in self._requests:
            queue.put_nowait(None)
