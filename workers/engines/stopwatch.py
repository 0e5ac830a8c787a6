"""The stopwatch of a training step: seconds by phase, on the clock of the device."""

import contextlib
from collections.abc import Iterator
from typing import Any

from workers.memory.device_runtime import AbstractDeviceRuntime

PHASES = ("data", "forward", "backward", "optimizer")


class Stopwatch:
    """Adds up seconds by phase until `read` resets them.

    `phase` is the current phase; `clock` returns the host's time in seconds.
    """

    def __init__(self, runtime: AbstractDeviceRuntime) -> None:
        self._runtime = runtime
        self.clock = runtime.clock
        self.phase = "build"
        self._spans: list[tuple[str, Any, Any]] = []  # a phase, and the events at its ends

    def synchronize(self) -> None:
        """Waits until the device has finished all work."""
        self._runtime.synchronize()

    def read(self) -> dict[str, float]:
        """Returns seconds by phase since the last `read`; the device must be synchronized."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for name, begin, end in self._spans:
            seconds[name] += self._runtime.seconds_between(begin, end)
        self._spans.clear()
        return seconds

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Counts the time inside the context towards a phase."""
        self.phase = name
        begin = self._runtime.record_event()
        yield
        self._spans.append((name, begin, self._runtime.record_event()))
