"""Retries with exponential backoff, for calls to a server that may be unavailable."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar, final

Answer = TypeVar("Answer")

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 15.0
_QUIET_SECONDS = 2.0  # shorter outages are not reported


class Unavailable(Exception):
    """The server does not answer now, but may later; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Source of time, and a way to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@final
class RetryPolicy:
    """Retries calls until a time limit, counted from the first of the failures in a row.

    Past the limit, each call gets one attempt, until one succeeds. `say` receives messages for the
    user, and `waiting` is called now and then while the server is unavailable.
    """

    def __init__(self, what: str, seconds: float, clock: Clock | None = None) -> None:
        """Configures the retries.

        Args:
            what: Name of the server in messages.
            seconds: Longest outage.
            clock: Source of time.
        """
        self._server = what
        self._seconds = seconds
        self._clock = clock or Clock(sleep=self._pause)
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._since: float | None = None  # time of the first failure in a row
        self._reported = False
        self.say: Callable[[str], None] = lambda _: None
        self.waiting: Callable[[], None] = lambda: None

    def stop_retrying(self) -> None:
        """Stops retrying: from now on the first failure of a call is final.

        Also from a signal's handler; a pause ends at once.
        """
        self._seconds = 0.0
        self._stopped.put(None)

    def call(self, act: Callable[[int], Answer]) -> Answer:
        """Calls a function with the number of earlier attempts until it succeeds.

        Raises:
            Unavailable: The last failure, past the time limit.
        """
        attempt = 0
        while True:
            try:
                answer = act(attempt)
            except Unavailable as error:
                if not self._wait(attempt, str(error)):
                    raise
            else:
                self._reset()
                return answer
            attempt += 1

    def _wait(self, attempt: int, reason: str) -> bool:
        """Waits until the next attempt is due; returns False if there is no time for one."""
        now = self._clock.now()
        self._since = now if self._since is None else self._since
        remaining = self._since + self._seconds - now
        if remaining <= 0:
            return False
        pause = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS, remaining)
        if now + pause - self._since >= _QUIET_SECONDS and not self._reported:
            self._reported = True
            self.say(
                f"{self._server} is unavailable ({reason}); retrying for up to {_length(remaining)}"
            )
        self.waiting()
        self._clock.sleep(pause)
        return True

    def _pause(self, seconds: float) -> None:
        with contextlib.suppress(Empty):
            self._stopped.get(timeout=seconds)

    def _reset(self) -> None:
        if self._reported and self._since is not None:
            outage = self._clock.now() - self._since
            self.say(f"{self._server} is back after {_length(outage)}")
        self._since, self._reported = None, False


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
