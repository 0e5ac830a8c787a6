"""The view for a terminal: one picture of the sweep, redrawn in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.core.events import Event
from orchestrator.core.state import SweepState
from orchestrator.listener import AbstractListener
from orchestrator.view.panel import picture

# Drawing takes milliseconds of the cores that a trial on CPU is being measured on.
REFRESHES_PER_SECOND = 2.0


@final
class LiveView(AbstractListener):
    """Keeps the last state and lets rich draw it, a few times a second, until closed.

    The picture is taken away in the end, since the final report follows it.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        self._console = console
        self._clock = clock
        self._state: SweepState | None = None
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
        )

    def on_event(self, event: Event, state: SweepState) -> None:
        """Keeps the state; the next refresh shows it."""
        del event  # all that is shown is in the state
        self._state = state
        if not self._live.is_started:
            self._live.start()

    def close(self) -> None:
        """Takes the picture away."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        if self._state is None:
            return Text()
        width, height = self._console.size
        return picture(self._state, now=self._clock(), width=width, height=height)
