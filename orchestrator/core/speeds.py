"""Speeds of plans over all their measurements, and how much trials of the same plan differ."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from orchestrator.core.objective import Objective
from orchestrator.core.records import Record
from orchestrator.core.trial_noise import TrialNoise, fit
from search_spaces.hardware.noise import noise_prior
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured

_WIDEST = 2.3  # half of an interval in logarithms, at most: a factor of ten
_INTERVAL = 1.96  # standard deviations from a value to the end of its 95 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one plan over all its trials and validations, as a logarithm of samples per second.

    Attributes:
        mean: Mean over its measurements, less what the machine's drift explains.
        count: Number of measurements.
        within: Standard error of the mean, from the steps within its trials.
        variance: Of the mean's error, from what trials of a plan differ by.
    """

    mean: float
    count: int
    within: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Speeds of all measured plans.

    Attributes:
        by_plan: Of each plan that was measured.
        objective: What plans are compared by: samples per second, or per price.
        noise: How much trials of a plan differ.
        together: Covariance of the errors of plans that were measured more than once, by pair.
    """

    by_plan: Mapping[Plan, Speed]
    objective: Objective
    noise: TrialNoise
    together: Mapping[tuple[Plan, Plan], float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, records: Iterable[Record], validations: Iterable[Record], objective: Objective
    ) -> Speeds:
        """Pools trials and validations by plan."""
        trials = defaultdict[Plan, list[tuple[Estimate, float]]](list)
        prior = noise_prior("cpu").deviation
        for record in (*records, *validations):
            if record.fingerprint is not None:
                prior = noise_prior(record.fingerprint.device).deviation
            if isinstance(record.outcome, Measured) and record.outcome.samples_per_second.value > 0:
                rate = record.outcome.samples_per_second
                trials[record.plan].append((rate, (record.started_at + record.ended_at) / 2))
        repeated = [plan for plan, found in trials.items() if len(found) > 1]
        noise, means, together = TrialNoise(prior), dict[Plan, float](), {}
        if repeated:
            noise, fitted, covariance = fit(
                np.array([math.log(rate.value) for p in repeated for rate, _ in trials[p]]),
                np.array([at for at, p in enumerate(repeated) for _ in trials[p]]),
                np.array([at for p in repeated for _, at in trials[p]]),
                prior,
            )
            means = dict(zip(repeated, fitted.tolist(), strict=True))
            pairs = [(one, other) for one in repeated for other in repeated]
            together = dict(zip(pairs, covariance.ravel().tolist(), strict=True))
        by_plan = {
            plan: Speed(
                mean=means.get(plan, math.log(of[0][0].value)),
                count=len(of),
                within=math.hypot(*(_half_width(rate) / _INTERVAL for rate, _ in of)) / len(of),
                variance=together.get((plan, plan), noise.deviation**2),
            )
            for plan, of in trials.items()
        }
        return cls(by_plan=by_plan, objective=objective, noise=noise, together=together)

    def half_width(self, plan: Plan) -> float:
        """Returns half of the 95 % interval of a plan's mean, in logarithms.

        Without repeats it covers the steps within its trial only, not other trials.
        """
        speed, noise = self.by_plan[plan], self.noise
        between = noise.quantile * math.sqrt(speed.variance) if noise.degrees else 0.0
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
        return self.score(plan) - self.noise.quantile * math.sqrt(self.by_plan[plan].variance)

    def margin(self, plan: Plan, other: Plan) -> float:
        """Returns half of the 95 % interval of the difference of two plans, in logarithms."""
        ours, theirs = self.by_plan[plan], self.by_plan[other]
        if not self.noise.degrees:  # the intervals of equals overlap
            return self.half_width(plan) + self.half_width(other)
        shared = 2 * self.together.get((plan, other), 0.0)
        between = math.sqrt(max(ours.variance + theirs.variance - shared, 0.0))
        within = math.hypot(ours.within, theirs.within)
        return max(self.noise.quantile * between, _INTERVAL * within)

    def record(self, record: Record) -> Record:
        """Returns a plan's record with the pooled speed of all its measurements."""
        outcome = record.outcome
        if not self.noise.degrees or not isinstance(outcome, Measured):
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
