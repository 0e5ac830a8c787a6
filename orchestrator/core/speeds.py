"""Speeds of plans over all their measurements, and how much trials of the same plan differ."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator.core.objective import Objective
from orchestrator.core.records import Record
from search_spaces.hardware.noise import noise_prior
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured

_PRIOR_WEIGHT = 1  # observations that the prior deviation between trials counts as
_WIDEST = 2.3  # half of an interval in logarithms, at most: a factor of ten
_INTERVAL = 1.96  # standard deviations from a value to the end of its 95 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one plan over all its trials and validations, as a logarithm of samples per second.

    Attributes:
        mean: Mean over its measurements.
        count: Number of measurements.
        within: Standard error of the mean, from the steps within its trials.
    """

    mean: float
    count: int
    within: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Speeds of all measured plans.

    Attributes:
        by_plan: Of each plan that was measured.
        objective: What plans are compared by: samples per second, or per price.
        deviation: Standard deviation between trials of a plan, in logarithms.
        degrees: Its degrees of freedom; 0 if no plan was measured twice.
    """

    by_plan: Mapping[Plan, Speed]
    objective: Objective
    deviation: float
    degrees: int = 0

    @classmethod
    def of(
        cls, records: Iterable[Record], validations: Iterable[Record], objective: Objective
    ) -> Speeds:
        """Pools trials and validations by plan."""
        values = defaultdict[Plan, list[Estimate]](list)
        prior = noise_prior("cpu").deviation
        for record in (*records, *validations):
            if record.fingerprint is not None:
                prior = noise_prior(record.fingerprint.device).deviation
            if isinstance(record.outcome, Measured) and record.outcome.samples_per_second.value > 0:
                values[record.plan].append(record.outcome.samples_per_second)
        by_plan, squares, degrees = dict[Plan, Speed](), 0.0, 0
        for plan, rates in values.items():
            logs = [math.log(rate.value) for rate in rates]
            mean = sum(logs) / len(logs)
            within = math.hypot(*(_half_width(rate) / _INTERVAL for rate in rates))
            by_plan[plan] = Speed(mean=mean, count=len(logs), within=within / len(logs))
            squares += sum((value - mean) ** 2 for value in logs)
            degrees += len(logs) - 1
        if not degrees:
            return cls(by_plan=by_plan, objective=objective, deviation=prior)
        squares += _PRIOR_WEIGHT * prior**2
        deviation = math.sqrt(squares / (_PRIOR_WEIGHT + degrees))
        return cls(by_plan=by_plan, objective=objective, deviation=deviation, degrees=degrees)

    @property
    def quantile(self) -> float:
        """Standard deviations from a mean to the end of its 95 % interval."""
        if not self.degrees:
            return _INTERVAL
        from scipy.special import stdtrit  # commands that need none start sooner

        return float(stdtrit(_PRIOR_WEIGHT + self.degrees, 0.975))

    def half_width(self, plan: Plan) -> float:
        """Returns half of the 95 % interval of a plan's mean, in logarithms.

        Without repeats it covers the steps within its trial only, not other trials.
        """
        speed = self.by_plan[plan]
        between = self.quantile * self.deviation / math.sqrt(speed.count) if self.degrees else 0.0
        return min(max(between, _INTERVAL * speed.within), _WIDEST)

    def score(self, plan: Plan) -> float:
        """Returns the logarithm of the objective's value."""
        mean = self.by_plan[plan].mean
        if self.objective.metric != "samples_per_price":
            return mean
        return mean + math.log(self.objective.seconds_per_price(plan) or 1.0)

    def lower_bound(self, plan: Plan) -> float:
        """Returns the lower end of the 95 % interval of a plan's score, by which leaders rank.

        The interval covers differences between trials only: few steps within a trial do not widen
        it. Of plans with the same mean, the one that was measured more often ranks first.
        """
        between = self.deviation / math.sqrt(self.by_plan[plan].count)
        return self.score(plan) - self.quantile * between

    def margin(self, plan: Plan, other: Plan) -> float:
        """Returns half of the 95 % interval of the difference of two plans, in logarithms."""
        ours, theirs = self.by_plan[plan], self.by_plan[other]
        if not self.degrees:  # the intervals of equals overlap
            return self.half_width(plan) + self.half_width(other)
        between = self.deviation * math.sqrt(1 / ours.count + 1 / theirs.count)
        return max(self.quantile * between, _INTERVAL * math.hypot(ours.within, theirs.within))

    def record(self, record: Record) -> Record:
        """Returns a plan's record with the pooled speed of all its measurements."""
        outcome = record.outcome
        if not self.degrees or not isinstance(outcome, Measured):
            return record
        if record.plan not in self.by_plan or not outcome.samples_per_second.value:
            return record
        rate = math.exp(self.by_plan[record.plan].mean)
        factor, half = rate / outcome.samples_per_second.value, self.half_width(record.plan)
        return replace(
            record,
            outcome=replace(
                outcome,
                samples_per_second=_around(rate, half),
                step_seconds=_around(outcome.step_seconds.value / factor, half),
                tokens_per_second=outcome.tokens_per_second * factor,
                mfu=outcome.mfu and outcome.mfu * factor,
                paper_mfu=outcome.paper_mfu and outcome.paper_mfu * factor,
            ),
        )


def _half_width(rate: Estimate) -> float:
    if rate.low <= 0:
        return _WIDEST
    return min(math.log(rate.high / rate.low) / 2, _WIDEST)


def _around(value: float, half_width: float) -> Estimate:
    low, high = value * math.exp(-half_width), value * math.exp(half_width)
    return Estimate(value=value, low=low, high=high)
