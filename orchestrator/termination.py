"""What ends a process from outside, as an exception that lets it say what it has."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

_PATIENCE = 2  # the signal of this number is only answered; the next one ends what closes


@dataclass
class Termination:
    """The signal that came, and how often one did."""

    signum: signal.Signals = signal.SIGINT
    times: int = 0

    def __str__(self) -> str:
        return "Ctrl-C" if self.signum == signal.SIGINT else self.signum.name


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[Termination]:
    """Ctrl-C, and SIGTERM, which `ray job stop` sends, raise KeyboardInterrupt; once.

    No other exception: Ray and Ray Tune let none through their calls. A second one, which would cut
    short what the first one made a process close, is only answered; a third one ends it at once.
    """
    came = Termination()

    def stop(signum: int, _: FrameType | None) -> None:
        came.times += 1
        if came.times == _PATIENCE:
            sys.stderr.write("Stopping: what was measured is kept. Once more ends it at once.\n")
            return
        came.signum = signal.Signals(signum)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    heard = [
        signum
        for signum in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(signum) is not signal.SIG_IGN  # as of what a shell starts behind itself
    ]
    before = {signum: signal.signal(signum, stop) for signum in heard}
    try:
        yield came
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
