"""What a search is for: the quantity that is to be large, and what any answer must reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.search.evidence import Sight
from orchestrator.search.gaussian import Numbers
from orchestrator.search.surrogate import Belief, Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aim:
    """All as logarithms, of candidates where it is an array of shape (candidates,).

    `of` says what is to be large: throughput, over `price` where that is given, or what a peak
    leaves of the limit, for which peaks are compared. `line` is the largest share of the limit
    that may be held, `least` the throughput that a candidate must reach.
    """

    of: Literal["rate", "room"] = "rate"
    line: float = 0.0
    price: Numbers | None = None
    least: Numbers | None = None

    def answered(self, sight: Sight) -> bool:
        """Whether a trial is an answer: measured here, below the line, and as fast as asked."""
        if not sight.measured or sight.study or sight.log_rate is None:
            return False
        if self.of == "room" and sight.log_share is None:
            return False
        if sight.log_share is not None and sight.log_share > self.line:
            return False
        return self.least is None or sight.log_rate >= float(self.least[sight.row])

    def expected(self, rate: Belief, share: Belief, rows: Rows) -> tuple[Numbers, Numbers]:
        """Mean and deviation of what candidates reach."""
        if self.of == "room":
            return -share.mean, share.deviation
        if self.price is None:
            return rate.mean, rate.deviation
        priced: Numbers = rate.mean - self.price[rows]
        return priced, rate.deviation

    def beyond(self, rate: Belief, rows: Rows) -> Numbers | None:
        """By how many deviations candidates are expected to reach what they must; None: nothing."""
        if self.least is None:
            return None
        found: Numbers = (rate.mean - self.least[rows]) / rate.deviation
        return found
