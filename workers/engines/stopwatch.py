"""Stopwatches: seconds by phase of a training step, on the clock of the device."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch

PHASES = ("data", "forward", "backward", "optimizer")


class AbstractStopwatch(ABC):
    """Adds up seconds by phase until `read` resets them.

    `phase` is the current phase; `clock` returns the host's time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.phase = "build"

    @abstractmethod
    def _start(self, name: str) -> None: ...

    @abstractmethod
    def _stop(self, name: str) -> None: ...

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until the device has finished all work."""

    @abstractmethod
    def read(self) -> dict[str, float]:
        """Returns seconds by phase since the last `read`; the device must be synchronized."""

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Counts the time inside the context towards a phase."""
        self.phase = name
        self._start(name)
        yield
        self._stop(name)


class HostStopwatch(AbstractStopwatch):
    """Stopwatch for the CPU, which computes while Python waits."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._started = 0.0

    def _start(self, name: str) -> None:
        self._started = self.clock()

    def _stop(self, name: str) -> None:
        self._seconds[name] += self.clock() - self._started

    def synchronize(self) -> None:
        pass

    def read(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return seconds


class CudaStopwatch(AbstractStopwatch):
    """Stopwatch for CUDA, which computes asynchronously: events on the stream."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def _start(self, name: str) -> None:
        begin = torch.cuda.Event(enable_timing=True)
        begin.record()
        self._spans.append((name, begin, torch.cuda.Event(enable_timing=True)))

    def _stop(self, name: str) -> None:
        self._spans[-1][2].record()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def read(self) -> dict[str, float]:
        seconds = dict.fromkeys(PHASES, 0.0)
        for name, begin, end in self._spans:
            seconds[name] += begin.elapsed_time(end) / 1000
        self._spans.clear()
        return seconds


def stopwatch_for(device: torch.device) -> AbstractStopwatch:
    """Returns the stopwatch of a device."""
    return CudaStopwatch(device) if device.type == "cuda" else HostStopwatch()
