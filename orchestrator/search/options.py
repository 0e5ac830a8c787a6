"""What a search chooses among, and what it says of its choice."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.search.aim import Aim
from orchestrator.search.gaussian import Numbers

_FASTEST = Aim()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """All candidates, as a search sees them.

    `log_rate` and `log_share` are forecasts, None where there are none; the parts say by how much
    a standard deviation of each of a forecast's coefficients moves it (candidates, coefficients).
    `seconds` is what a trial of each is expected to take; `aim` says what is wanted of them.
    """

    features: Numbers
    log_rate: Numbers | None
    log_share: Numbers | None
    rate_parts: Numbers | None = None
    share_parts: Numbers | None = None
    seconds: Numbers | None = None
    aim: Aim = _FASTEST

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to try next, and what is expected of it.

    `gain` is what is expected of what is wanted over the best known, less 1, and `best` that one's
    candidate; None while none is known. `saving` is the share of a run's time (or price) that
    knowing it is expected to save, the chance counted that it is no better or does not fit;
    infinite while none is known. `worth` is what candidates were compared by. `reaches` is the
    chance that its throughput is as high as asked; None if nothing is asked.
    """

    row: int
    fits: float
    worth: float
    saving: float
    gain: float | None = None
    best: int | None = None
    reaches: float | None = None
