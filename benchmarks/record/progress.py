"""Progress of a recording, in a line for each measurement."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.record.order import Turn
from orchestrator.core.inputs import TrialFinished
from orchestrator.report.format import duration
from orchestrator.report.labels import brief_outcome, plan_words


class Progress:
    """Says a line for each measurement, with what is left by the time that the others took."""

    def __init__(
        self,
        count: int,
        left: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the clock.

        Args:
            count: Measurements of the whole recording.
            left: Those that are still to come.
            say: Is told a line.
            clock: Seconds.
        """
        self._count, self._left, self._say, self._clock = count, left, say, clock
        self._began, self._ended = clock(), 0

    def ended(self, turn: Turn, report: TrialFinished) -> None:
        """A measurement has its row."""
        self._left -= 1
        self._ended += 1
        seconds = self._left * (self._clock() - self._began) / self._ended
        self._say(
            f"[{self._count - self._left:,} of {self._count:,}] {plan_words(turn.plan)}:"
            f" {brief_outcome(report.outcome)} [about {duration(seconds)} left]"
        )
        for fault in report.faults:
            self._say(f"note: {fault}")
