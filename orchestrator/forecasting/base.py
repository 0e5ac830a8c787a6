"""Who tells a driver what to expect of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from orchestrator.core.state import SweepState
from search_spaces.expectation import Expectation
from search_spaces.forecast.prospects import Prospects
from search_spaces.plan import Plan


class AbstractForecasts(ABC):
    """Forecasts of one sweep's plans. Costs no trial anything: what cannot be told is None."""

    @abstractmethod
    def expectation(self, plan: Plan, state: SweepState) -> Expectation | None:
        """What is expected of a plan, given what the sweep has measured; None if nothing is yet."""

    @abstractmethod
    def prospects(self, state: SweepState) -> Prospects | None:
        """What is expected of all candidates before records; None if nothing is yet.

        The same object again unless something changed that it depends on.
        """

    @abstractmethod
    def problem(self) -> str | None:
        """Why there are no forecasts, as a sentence; told once, None while there is no reason."""


@final
class NoForecasts(AbstractForecasts):
    """Expects nothing."""

    def expectation(self, plan: Plan, state: SweepState) -> Expectation | None:
        return None

    def prospects(self, state: SweepState) -> Prospects | None:
        return None

    def problem(self) -> str | None:
        return None
