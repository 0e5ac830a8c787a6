"""Alarm between ranks: a rank that fails wakes the peers that wait for it in a collective.

Peers over gloo wake when a connection closes. Those over NCCL do not: a kernel of theirs waits for
the failed rank until their own process aborts the communicator. So each rank has a thread that
waits for the alarm of the trial, in torch's store, and aborts then.

Source:
    https://github.com/pytorch/pytorch/pull/32895: a rank that aborts leaves the others spinning.
"""

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterator
from typing import Any, final

from torch.distributed import distributed_c10d

_ENDED, _RUNG = "ended", "rung"
_LONGEST = datetime.timedelta(days=30)  # a trial has its deadline, which is not this thread's
_ABORT_SECONDS = 10.0  # for a communicator to be aborted


@final
class Alarm:
    """The alarm of one rank, for trial after trial.

    `rung` is true if a peer failed in the last trial while this rank was watching.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        """Connects to the store of the default process group.

        Args:
            rank: Of this process.
            world_size: Ranks of the group.
        """
        self.rung = False
        self._store: Any = distributed_c10d._get_default_store()
        self._rank, self._world_size = rank, world_size
        self._trials = 0  # all ranks run the same ones

    @contextlib.contextmanager
    def watched(self, abort: Callable[[], None]) -> Iterator[None]:
        """Calls `abort` in a thread of its own if a peer rings in this trial.

        Args:
            abort: Aborts the communicators of this rank.
        """
        self._trials += 1
        self.rung = False
        watcher = threading.Thread(target=self._watch, args=(abort,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # the store is gone with the first rank
                if not self._store.check([self._key(self._rank)]):
                    self._store.set(self._key(self._rank), _ENDED)
            watcher.join(_ABORT_SECONDS)

    def ring(self) -> None:
        """Wakes all peers that run this trial; those that have ended it do not notice."""
        with contextlib.suppress(RuntimeError):
            for rank in range(self._world_size):
                if rank != self._rank:
                    self._store.set(self._key(rank), _RUNG)

    def _watch(self, abort: Callable[[], None]) -> None:
        key = self._key(self._rank)
        with contextlib.suppress(RuntimeError):
            store = self._store.clone()  # a connection waits for one thing at a time
            store.wait([key], _LONGEST)
            self.rung = store.get(key) == _RUNG.encode()
            if self.rung:
                abort()
            store.delete_key(key)

    def _key(self, rank: int) -> str:
        return f"plimsoll/alarm/{self._trials}/{rank}"
