"""What ends a process from outside, as an exception that lets it say what it has."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def termination_as(error: Callable[[str], BaseException]) -> Iterator[None]:
    """SIGTERM, which `ray job stop` sends, raises what `error` makes of a reason."""

    def stop(signum: int, _: FrameType | None) -> NoReturn:
        raise error(f"stopped by {signal.Signals(signum).name}")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
