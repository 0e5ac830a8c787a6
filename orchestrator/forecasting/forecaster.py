"""Forecasts of a model's plans on a device, corrected by a study's own records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from orchestrator.planning.learning import learned_from
from search_spaces.estimate import Estimate
from search_spaces.expectation import Expectation
from search_spaces.facts import ModelFacts
from search_spaces.footprint import Footprint
from search_spaces.forecast.belief import Belief
from search_spaces.forecast.forecast import Forecasts, forecast
from search_spaces.forecast.planned import VariantKey, executions_of, variants_of
from search_spaces.forecast.prospects import Prospects, prospects
from search_spaces.forecast.scales import SURE
from search_spaces.forecast.work import work_of
from search_spaces.hardware import Device
from search_spaces.outcome import Measured
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.record import Record

MOST_RECORDS = 200  # what more of them teach is less than what learning from them takes


class Forecaster:
    """What is expected of single plans; the same question has the same answer."""

    def __init__(
        self, *, model: ModelFacts, device: Device, footprint: Footprint, belief: Belief
    ) -> None:
        """Nothing is learned yet.

        Args:
            model: What is known of the model.
            device: What each rank runs on.
            footprint: The model's, with the variants of all plans that are asked about.
            belief: What is believed of software and machines before this study.
        """
        self._model = model
        self._device = device
        self._footprint = footprint
        self._belief = belief
        self._variants: frozenset[VariantKey] = frozenset(
            (variant.attention, variant.compute, variant.split) for variant in footprint.variants
        )

    def expectation(
        self, plan: Plan, records: Sequence[Record], limit_bytes: int | None
    ) -> Expectation | None:
        """What is expected of a plan after these records; None if the footprint lacks it.

        Args:
            plan: Any plan of the model.
            records: Of trials on this device; the measured ones teach, the last ones if many.
            limit_bytes: What one rank may hold; None: the device's memory.
        """
        table = PlanTable.of([plan])
        if not self._covers(plan):
            return None
        told = tuple(islice(self._telling(reversed(records)), MOST_RECORDS))[::-1]
        belief = learned_from(
            self._belief,
            told,
            model=self._model,
            device=self._device,
            trace=lambda _: self._footprint,
        )
        limit = float(self._device.memory_bytes if limit_bytes is None else limit_bytes)
        executions = executions_of(table, self._model, self._footprint)
        work = work_of(self._footprint, self._device, executions)
        before = forecast(work, self._belief, limit)
        after = before if belief is self._belief else forecast(work, belief, limit)
        return _expectation(after, before, len(told), filled=float(executions.filled[0]))

    def prospects(self, table: PlanTable, limit_bytes: int | None) -> Prospects | None:
        """What a search may expect of plans before records; None if the footprint lacks one.

        Args:
            table: Plans of the model.
            limit_bytes: What one rank may hold; None: the device's memory.
        """
        if not self._variants.issuperset(variants_of(table)):
            return None
        limit = float(self._device.memory_bytes if limit_bytes is None else limit_bytes)
        executions = executions_of(table, self._model, self._footprint)
        found = prospects(work_of(self._footprint, self._device, executions), self._belief, limit)
        columns = (found.log_rate, found.log_share, found.rate_parts, found.share_parts)
        return found if all(np.isfinite(column).all() for column in columns) else None

    def _telling(self, records: Iterable[Record]) -> Iterator[Record]:
        """Measured ones, of plans that are traced: a study's space may have been another."""
        for record in records:
            if isinstance(record.outcome, Measured) and self._covers(record.plan):
                yield record

    def _covers(self, plan: Plan) -> bool:
        return self._variants.issuperset(variants_of(PlanTable.of([plan])))


def _expectation(
    after: Forecasts, before: Forecasts, learned: int, *, filled: float
) -> Expectation | None:
    """The only row as a value; None if it holds what is no number, which no record could keep."""
    rate, step, peak = (
        _around(float(values[0]), float(deviations[0]))
        for values, deviations in (
            (after.samples_per_second, after.step_deviation),
            (after.step_seconds, after.step_deviation),
            (after.peak_bytes, after.peak_deviation),
        )
    )
    unlearned = float(before.samples_per_second[0]), float(before.peak_bytes[0])
    fits = float(after.fits[0])
    if rate is None or step is None or peak is None or not all(map(math.isfinite, unlearned)):
        return None
    return Expectation(
        samples_per_second=rate,
        step_seconds=step,
        peak_bytes=peak,
        fits=fits,
        limited_by=after.limited_by(0),
        learned_from=learned,
        unlearned_samples_per_second=unlearned[0],
        unlearned_peak_bytes=unlearned[1],
        filled=filled,
    )


def _around(value: float, deviation: float) -> Estimate | None:
    factor = float(np.exp(SURE * deviation))
    low, high = value / factor, value * factor
    if not (math.isfinite(high) and low <= value <= high):
        return None
    return Estimate(value=value, low=low, high=high)
