"""Watchdog of the driver: ends a process whose main thread does not come back from a call.

Calls into Ray have no time limit of their own. If the head's processes hang, the main thread waits
in C++, where neither a Python signal handler nor an exception reaches it. If they die, Ray ends the
process after a minute, without a word and with exit code 1.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import final

import psutil

from orchestrator.host import end_now, has_ended

# Longer than any call that the driver bounds itself, such as the cleanup of a group
SILENT_SECONDS = 300.0
_CHECK_SECONDS = 1.0
_LAST_WORDS_SECONDS = 20.0


@final
class Watchdog:
    """Thread that ends this process, with its children, if `alive` is not called for too long.

    It counts the seconds in which it ran itself: a process that was stopped by a signal, or a
    machine that slept, was not silent meanwhile.
    """

    def __init__(
        self,
        code: int,
        last_words: Callable[[], None] = lambda: None,
        silent_seconds: float | None = None,
        head: psutil.Process | None = None,
    ) -> None:
        """Starts the thread.

        Args:
            code: Exit code of the process that it ends.
            last_words: Called before that, in a thread of its own and for a bounded time.
            silent_seconds: Longest silence.
            head: The process of Ray's head, if it is this machine's; nothing goes on without it.
        """
        self._code = code
        self._head = head
        self._last_words = last_words
        self._seconds = SILENT_SECONDS if silent_seconds is None else silent_seconds
        self._silence = 0.0
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def alive(self) -> None:
        """Says that the main thread goes on."""
        self._silence = 0.0

    def stop(self) -> None:
        """Ends the watch."""
        self._stop.set()

    def end_at_once(self) -> None:
        """Says the last words, for a bounded time."""
        speaking = threading.Thread(target=self._last_words, daemon=True)
        speaking.start()
        speaking.join(_LAST_WORDS_SECONDS)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(_CHECK_SECONDS):
            now = time.monotonic()
            self._silence += min(now - before, 2 * _CHECK_SECONDS)
            before = now
            if self._silence > self._seconds:
                self._end(f"the cluster has not answered for {self._seconds:.0f} s")
            elif self._head is not None and has_ended(self._head):
                self._end("Ray's head on this machine has died")

    def _end(self, fault: str) -> None:
        sys.stderr.write(
            f"plimsoll: {fault}, so this sweep ends; measured trials are safe, the same command"
            " resumes\n"
        )
        self.end_at_once()
        end_now(self._code)
