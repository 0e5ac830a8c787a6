"""Watchdog of the driver: ends a process whose main thread does not come back from a call.

Calls into Ray have no time limit of their own. If the head's processes hang, the main thread waits
in C++, where neither a Python signal handler nor an exception reaches it. If they die, Ray ends the
process after a minute, without a word and with exit code 1.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import final

import psutil

from orchestrator.cluster.processes import has_ended
from orchestrator.host import end_now

# Longer than any call that the driver bounds itself, such as the cleanup of a group
SILENT_SECONDS = 300.0
_CHECK_SECONDS = 1.0
_LAST_WORDS_SECONDS = 20.0


@final
class Watchdog:
    """Thread that ends this process, with its children, if `alive` is not called for too long.

    It counts the seconds in which it ran itself, from the first call of `alive`: a process that was
    stopped by a signal, or a machine that slept, was not silent meanwhile.

    Attributes:
        last_words: Called with the fault before that, in a thread of its own and for a bounded
            time.
    """

    def __init__(self, code: int, head: Callable[[], psutil.Process | None]) -> None:
        """Starts the thread.

        Args:
            code: Exit code of the process that it ends.
            head: Returns the process of Ray's head, once it is there, if it is this machine's;
                nothing goes on without it.
        """
        self.last_words: Callable[[str], None] = lambda _: None
        self._code = code
        self._find_head = head
        self._silence: float | None = None
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def alive(self) -> None:
        """Says that the main thread goes on."""
        self._silence = 0.0

    def stop(self) -> None:
        """Ends the watch."""
        self._stop.set()

    def _watch(self) -> None:
        before = time.monotonic()
        head = None
        while not self._stop.wait(_CHECK_SECONDS):
            now = time.monotonic()
            if self._silence is not None:
                self._silence += min(now - before, 2 * _CHECK_SECONDS)
            before, head = now, head or self._find_head()
            if self._silence is not None and self._silence > SILENT_SECONDS:
                self._end(
                    f"Ray or the study's database has not answered for {SILENT_SECONDS:.0f} s"
                )
            elif head is not None and has_ended(head):
                self._end("Ray's head on this machine has died")

    def _end(self, fault: str) -> None:
        sys.stderr.write(
            f"plimsoll: {fault}, so this sweep ends; measured trials are safe, the same command"
            " resumes\n"
        )
        speaking = threading.Thread(target=self.last_words, args=(fault,), daemon=True)
        speaking.start()
        speaking.join(_LAST_WORDS_SECONDS)
        end_now(self._code)
