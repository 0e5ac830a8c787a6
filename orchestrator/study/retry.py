"""Calls to a server that may be away: tried again, less and less often, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

Answer = TypeVar("Answer")

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 15.0
_QUIET_SECONDS = 2.0  # that short an absence is not told of


class Unavailable(Exception):
    """What was called does not answer now, and may later; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Seconds that pass, and a way to let them pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@final
class RetryPolicy:
    """Tries again while something is away, for so many seconds from the first failure on.

    Once they are over, each call is tried a single time, until one succeeds.
    """

    def __init__(self, what: str, seconds: float, clock: Clock | None = None) -> None:
        """Nothing was away yet.

        Args:
            what: What is called, as sentences name it.
            seconds: How long it may be away.
            clock: The time.
        """
        self._what = what
        self._seconds = seconds
        self._clock = clock or Clock()
        self._since: float | None = None  # when the first of the failures in a row was
        self._told = False
        self.say: Callable[[str], None] = lambda _: None

    def give_up_waiting(self) -> None:
        """From now on a failure ends a call at once: somebody waits for the end."""
        self._seconds = 0.0

    def call(self, act: Callable[[int], Answer]) -> Answer:
        """What `act` returns; it is told how many attempts came before.

        Raises:
            Away: The last failure, when the time is over.
        """
        attempt = 0
        while True:
            try:
                answer = act(attempt)
            except Unavailable as away:
                if not self._wait(attempt, str(away)):
                    raise
            else:
                self._answered()
                return answer
            attempt += 1

    def _wait(self, attempt: int, reason: str) -> bool:
        """Whether there is time left for another attempt, which is due on return."""
        now = self._clock.now()
        self._since = now if self._since is None else self._since
        left = self._since + self._seconds - now
        if left <= 0:
            return False
        pause = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS, left)
        if now + pause - self._since >= _QUIET_SECONDS and not self._told:
            self._told = True
            self.say(f"{self._what} is away ({reason}); waiting for it up to {_length(left)}")
        self._clock.sleep(pause)
        return True

    def _answered(self) -> None:
        if self._told and self._since is not None:
            gone = self._clock.now() - self._since
            self.say(f"{self._what} is back after {_length(gone)}")
        self._since, self._told = None, False


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
