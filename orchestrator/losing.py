"""A driver whose study may be lost: it hands out no more trials then, and says why at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import final

from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.placement import Placement
from search_spaces.errors import StudyError


@final
class LosableDriver(AbstractDriver):
    """Stands between who runs trials and a driver, and keeps the error that ends it.

    Ray Tune would make a long trace of it. What is under way elsewhere comes to its end, and
    its result is told if the storage is back by then, or else kept beside the study.
    """

    def __init__(self, driver: AbstractDriver) -> None:
        self._driver = driver
        self.lost: StudyError | None = None

    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        if self.lost is None:
            with self._losses():
                return self._driver.propose(idle)
        return None

    def conclude(self, report: TrialReport) -> None:
        with self._losses():
            self._driver.conclude(report)

    def lose(self, number: int, notes: Sequence[str] = ()) -> None:
        with self._losses():
            self._driver.lose(number, notes)

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except StudyError as error:
            self.lost = self.lost or error
