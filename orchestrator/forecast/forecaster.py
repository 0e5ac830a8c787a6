"""Forecasts of a model's plans on a device, corrected by a study's own records."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar, final

import numpy as np

from orchestrator.core.state import SweepState
from orchestrator.forecast.calibration import calibrated
from search_spaces.costs.calibration import SURE, Calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.forecast import Forecasts, SearchPrior, forecast, joined, search_prior
from search_spaces.costs.plan_encoding import VariantKey, plan_features, variants_of
from search_spaces.costs.workload import work_of
from search_spaces.errors import UserError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.hardware import Device, find_device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Estimate, Fingerprint, Measured, PlanForecast, Record

MOST_RECORDS = 200  # what more of them teach is less than what learning from them takes
CPU = "cpu"
_Told = TypeVar("_Told")
# What arithmetic raises on a footprint, a device file or a record that it was not made for.
# A forecast that cannot be made costs a sweep nothing.
_ARITHMETIC = (ArithmeticError, LookupError, ValueError)


class Forecaster:
    """What is expected of single plans; the same question has the same answer."""

    def __init__(
        self, *, model: ModelFacts, device: Device, footprint: Footprint, belief: Calibration
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
    ) -> PlanForecast | None:
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
        belief = calibrated(
            self._belief,
            told,
            model=self._model,
            device=self._device,
            trace=lambda _: self._footprint,
        )
        limit = float(self._device.memory_bytes if limit_bytes is None else limit_bytes)
        executions = plan_features(table, self._model, self._footprint)
        work = work_of(self._footprint, self._device, executions)
        before = forecast(work, self._belief, limit)
        after = before if belief is self._belief else forecast(work, belief, limit)
        return _expectation(after, before, len(told), filled=float(executions.filled[0]))

    def prospects(self, table: PlanTable, limit_bytes: int | None) -> SearchPrior | None:
        """What a search may expect of plans before records; None if the footprint lacks one.

        Args:
            table: Plans of the model.
            limit_bytes: What one rank may hold; None: the device's memory.
        """
        if not self._variants.issuperset(variants_of(table)):
            return None
        limit = float(self._device.memory_bytes if limit_bytes is None else limit_bytes)
        executions = plan_features(table, self._model, self._footprint)
        found = search_prior(
            work_of(self._footprint, self._device, executions), self._belief, limit
        )
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
) -> PlanForecast | None:
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
    return PlanForecast(
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


class AbstractForecasts(ABC):
    """Forecasts of one sweep's plans. Costs no trial anything: what cannot be told is None."""

    @abstractmethod
    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        """What is expected of a plan, given what the sweep has measured; None if nothing is yet."""

    @abstractmethod
    def prospects(self, state: SweepState) -> SearchPrior | None:
        """What is expected of all candidates before records; None if nothing is yet.

        The same object again unless something changed that it depends on.
        """

    @abstractmethod
    def problem(self) -> str | None:
        """Why there are no forecasts, as a sentence; told once, None while there is no reason."""


@final
class NoForecasts(AbstractForecasts):
    """Expects nothing."""

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        return None

    def prospects(self, state: SweepState) -> SearchPrior | None:
        return None

    def problem(self) -> str | None:
        return None


_Basis = tuple[Forecaster | None, int | None]  # and what a rank may hold, in bytes


@final
class TracedForecasts(AbstractForecasts):
    """Waits for nothing: before the trace has ended, nothing is expected."""

    def __init__(
        self,
        spec: SweepSpec,
        model: ModelFacts,
        cluster: ClusterFacts,
        belief: Calibration,
        poll: Callable[[], Footprint | None],
    ) -> None:
        """Asks for nothing yet.

        Args:
            spec: The sweep's.
            model: What is known of its model.
            cluster: Where it runs; on CUDA, which GPU that is will be known when workers tell.
            belief: What is believed before this study's own records.
            poll: Gives the footprint once it is there, None before; raises a `UserError` if
                there will be none.
        """
        self._spec = spec
        self._model = model
        self._cluster = cluster
        self._belief = belief
        self._poll = poll
        # by accelerator, with the device as workers told it when the forecaster was made
        self._forecasters: dict[str, tuple[str | None, Forecaster | None]] = {}
        # of which forecasters and limits they are, and themselves
        self._prospects: tuple[list[_Basis], SearchPrior | None] | None = None
        self._failed = False
        self._problem: str | None = None

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        """What is expected of the plan, or None; what goes wrong ends forecasts alone."""
        return self._unless_failed(lambda: self._expected(plan, state))

    def prospects(self, state: SweepState) -> SearchPrior | None:
        """What is expected of the candidates, or None; likewise."""
        return self._unless_failed(lambda: self._prospects_of(state))

    def problem(self) -> str | None:
        told, self._problem = self._problem, None
        return told

    def _unless_failed(self, asked: Callable[[], _Told | None]) -> _Told | None:
        if self._failed:
            return None
        try:
            return asked()
        except UserError as error:
            self._fail(str(error))
        except _ARITHMETIC as error:
            self._fail(f"{type(error).__name__}: {error}")
        return None

    def _expected(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        forecaster, limit = self._basis(plan.accelerator, state)
        if forecaster is None:
            return None
        seen = known_fingerprint(state, plan.accelerator)
        records = _of_the_device(state.records, plan.accelerator, seen)
        return forecaster.expectation(plan, records, limit)

    def _prospects_of(self, state: SweepState) -> SearchPrior | None:
        table = state.space.table
        bases = [self._basis(kind, state) for kind in table.values["accelerator"]]
        if self._prospects is None or self._prospects[0] != bases:
            self._prospects = bases, _prospects(table, bases)
        return self._prospects[1]

    def _basis(self, accelerator: str, state: SweepState) -> _Basis:
        """Who forecasts plans on these nodes, and what a rank may hold there."""
        seen = known_fingerprint(state, accelerator)
        limit = _limit_bytes(state, accelerator, seen)
        return self._up_to_date(accelerator, seen), limit

    def _up_to_date(self, accelerator: str, seen: Fingerprint | None) -> Forecaster | None:
        name = seen.device_name if seen else None
        known = self._forecasters.get(accelerator)
        if known is None or known[1] is None or name != known[0]:
            known = self._forecasters[accelerator] = name, self._begin(accelerator, seen)
        return known[1]

    def _begin(self, accelerator: str, seen: Fingerprint | None) -> Forecaster | None:
        footprint = self._poll()
        device = device_of_workers(self._spec, self._cluster, seen, accelerator)
        if footprint is None or device is None:
            return None
        return Forecaster(
            model=self._model, device=device, footprint=footprint, belief=self._belief
        )

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._problem = f"trials have no forecast: {' '.join(reason.split())}"


def _prospects(table: PlanTable, bases: Sequence[_Basis]) -> SearchPrior | None:
    """Those of all plans; None while somebody who forecasts a part of them is missing."""
    kinds, parts, rows = table.values["accelerator"], [], []
    for kind, (forecaster, limit) in zip(kinds, bases, strict=True):
        here = np.flatnonzero(table.is_value("accelerator", kind))
        found = forecaster.prospects(table.take(here), limit) if forecaster else None
        if found is None:
            return None
        parts.append(found)
        rows.append(here)
    return parts[0] if len(parts) == 1 else joined(parts, rows)


def _limit_bytes(state: SweepState, accelerator: str, seen: Fingerprint | None) -> int | None:
    """What is known before any trial; of all nodes only where plans name no kinds of them."""
    asked = state.spec.on(accelerator).memory_limit_bytes
    return state.memory_limit_bytes or asked or (seen.device_memory_bytes if seen else None)


def known_fingerprint(state: SweepState, accelerator: str = "") -> Fingerprint | None:
    """What the workers on a kind of nodes are: as they told this driver, or an earlier one."""
    if state.fingerprint is not None and not accelerator:
        return state.fingerprint
    told = (
        record.fingerprint
        for record in reversed(state.records)
        if record.plan.accelerator == accelerator
    )
    return next((fingerprint for fingerprint in told if fingerprint is not None), None)


def device_of_workers(
    spec: SweepSpec, cluster: ClusterFacts, seen: Fingerprint | None, accelerator: str = ""
) -> Device | None:
    """The device of each rank on a kind of nodes, as the specification says or workers told.

    Returns:
        None on CUDA until workers have told which GPU theirs is, if plans name no kind of nodes.

    Raises:
        DeviceError: If nobody knows the GPU.
        SpecError: If a file of the user's devices has faults.
    """
    told = spec.cluster.accelerators.get(accelerator)
    if told is not None and told.gpu is not None:
        return find_device(told.gpu)
    if cluster.device == CPU:
        return find_device(CPU)
    if seen is None and not accelerator:
        return None
    device = find_device(seen.device_name if seen else accelerator)
    per_node = spec.cluster.gpus_per_node
    return replace(device, node_devices=per_node) if per_node else device


def _of_the_device(
    records: Sequence[Record], accelerator: str, seen: Fingerprint | None
) -> tuple[Record, ...]:
    """A study that went on elsewhere says nothing of this device with its older records."""
    return tuple(
        record
        for record in records
        if record.plan.accelerator == accelerator
        and record.fingerprint is not None
        and (seen is None or record.fingerprint.device_name == seen.device_name)
    )
