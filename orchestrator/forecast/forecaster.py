"""Forecasts of a model's plans on a device, calibrated by the records of the study."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar, final

import numpy as np

from orchestrator.core.records import Record, last_fingerprint
from orchestrator.core.state import SweepState
from orchestrator.forecast.calibration import MOST_RECORDS, calibrated
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.forecast import (
    SearchPrior,
    forecast,
    join_priors,
    plan_forecast,
    search_prior,
)
from search_spaces.costs.plan_encoding import VariantKey, plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.errors import UserError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.hardware.catalogue import find_device
from search_spaces.hardware.device import Device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint, Measured, PlanForecast

CPU = "cpu"
_Result = TypeVar("_Result")
# Errors of the arithmetic on an unexpected footprint, device file or record: they end the forecasts
# but not the sweep
_ARITHMETIC = (ArithmeticError, LookupError, ValueError)


class Forecaster:
    """Forecasts plans on one device; equal arguments give equal results."""

    def __init__(
        self, *, model: ModelFacts, device: Device, footprint: Footprint, calibration: Calibration
    ) -> None:
        """Makes a forecaster.

        Args:
            model: Facts about the model.
            device: The device of each rank.
            footprint: Footprint of the model, with the variants of all plans to forecast.
            calibration: The calibration before this study.
        """
        self._model = model
        self._device = device
        self._footprint = footprint
        self._calibration = calibration
        self._variants: frozenset[VariantKey] = frozenset(
            (variant.attention, variant.compute, variant.split) for variant in footprint.variants
        )

    def expectation(
        self, plan: Plan, records: Sequence[Record], limit_bytes: int | None
    ) -> PlanForecast | None:
        """Forecasts a plan, calibrated by records.

        Args:
            plan: Any plan of the model.
            records: Trials on this device; the last `MOST_RECORDS` measured ones count.
            limit_bytes: Memory limit of one rank; the device's memory if None.

        Returns:
            None if the footprint lacks the plan's variant, or a value is not finite.
        """
        table = PlanTable.of([plan])
        if not self._is_traced(plan):
            return None
        measured = tuple(islice(self._measured(reversed(records)), MOST_RECORDS))[::-1]
        calibration = calibrated(
            self._calibration,
            measured,
            model=self._model,
            device=self._device,
            trace=lambda _: self._footprint,
        )
        limit = float(self._device.memory_bytes if limit_bytes is None else limit_bytes)
        executions = plan_features(table, self._model, self._footprint)
        work = workload_of(self._footprint, self._device, executions)
        uncalibrated = forecast(work, self._calibration, limit)
        latest = forecast(work, calibration, limit) if measured else uncalibrated
        try:
            return plan_forecast(work, 0, latest, uncalibrated, len(measured))
        except FloatingPointError:
            return None

    def prior(self, table: PlanTable, limit_bytes: int | None) -> SearchPrior | None:
        """Returns the prior of a search: forecasts of plans before any record.

        Args:
            table: Plans of the model.
            limit_bytes: Memory limit of one rank; the device's memory if None.

        Returns:
            None if the footprint lacks a plan's variant, or a value is not finite.
        """
        if not self._variants.issuperset(variants_of(table)):
            return None
        limit = float(self._device.memory_bytes if limit_bytes is None else limit_bytes)
        executions = plan_features(table, self._model, self._footprint)
        prior = search_prior(
            workload_of(self._footprint, self._device, executions), self._calibration, limit
        )
        columns = (prior.log_rate, prior.log_share, prior.rate_parts, prior.share_parts)
        return prior if all(np.isfinite(column).all() for column in columns) else None

    def _measured(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            # The space of the study may have been another when older records were made
            if isinstance(record.outcome, Measured) and self._is_traced(record.plan):
                yield record

    def _is_traced(self, plan: Plan) -> bool:
        return self._variants.issuperset(variants_of(PlanTable.of([plan])))


class AbstractForecasts(ABC):
    """Forecasts of a sweep's plans. A missing forecast is None and delays no trial."""

    @abstractmethod
    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        """Forecasts a plan, calibrated by the sweep's records; None without a forecast."""

    @abstractmethod
    def prior(self, state: SweepState) -> SearchPrior | None:
        """Returns the prior of the search for all plans of the space; None without forecasts.

        Returns the same object until something that it depends on changes.
        """

    @abstractmethod
    def problem(self) -> str | None:
        """Returns the error that ended the forecasts, once; then None."""


@final
class NoForecasts(AbstractForecasts):
    """Makes no forecasts."""

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        return None

    def prior(self, state: SweepState) -> SearchPrior | None:
        return None

    def problem(self) -> str | None:
        return None


_Basis = tuple[Forecaster | None, int | None]  # with the memory limit of a rank, in bytes


@final
class TracedForecasts(AbstractForecasts):
    """Forecasts from a trace in the background; None until it is done."""

    def __init__(
        self,
        spec: SweepSpec,
        model: ModelFacts,
        cluster: ClusterFacts,
        calibration: Calibration,
        poll: Callable[[], Footprint | None],
    ) -> None:
        """Makes the forecasts of a sweep.

        Args:
            spec: The specification of the sweep.
            model: Facts about its model.
            cluster: Facts about its cluster; on CUDA, the workers report the GPU later.
            calibration: The calibration before the study's own records.
            poll: Returns the footprint, None before the trace is done; raises a `UserError` if it
                failed.
        """
        self._spec = spec
        self._model = model
        self._cluster = cluster
        self._calibration = calibration
        self._poll = poll
        # By accelerator, with the name of the device when the forecaster was made
        self._forecasters: dict[str, tuple[str | None, Forecaster | None]] = {}
        # With the forecasters and limits that it was made from
        self._prior: tuple[list[_Basis], SearchPrior | None] | None = None
        self._failed = False
        self._problem: str | None = None

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        """Forecasts a plan, or returns None; an error ends the forecasts, but not the sweep."""
        return self._guarded(lambda: self._plan_forecast(plan, state))

    def prior(self, state: SweepState) -> SearchPrior | None:
        """Returns the prior of the search, or None; an error ends the forecasts alike."""
        return self._guarded(lambda: self._search_prior(state))

    def problem(self) -> str | None:
        problem, self._problem = self._problem, None
        return problem

    def _guarded(self, compute: Callable[[], _Result | None]) -> _Result | None:
        if self._failed:
            return None
        try:
            return compute()
        except UserError as error:
            self._fail(str(error))
        except _ARITHMETIC as error:
            self._fail(f"{type(error).__name__}: {error}")
        return None

    def _plan_forecast(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        forecaster, limit = self._basis(plan.accelerator, state)
        if forecaster is None:
            return None
        fingerprint = _fingerprint_on(state, plan.accelerator)
        records = _on_device(state.records, plan.accelerator, fingerprint)
        return forecaster.expectation(plan, records, limit)

    def _search_prior(self, state: SweepState) -> SearchPrior | None:
        table = state.space.table
        bases = [self._basis(kind, state) for kind in table.values["accelerator"]]
        if self._prior is None or self._prior[0] != bases:
            self._prior = bases, _joint_prior(table, bases)
        return self._prior[1]

    def _basis(self, accelerator: str, state: SweepState) -> _Basis:
        fingerprint = _fingerprint_on(state, accelerator)
        limit = _limit_bytes(state, accelerator, fingerprint)
        return self._forecaster(accelerator, fingerprint), limit

    def _forecaster(self, accelerator: str, fingerprint: Fingerprint | None) -> Forecaster | None:
        """Returns the forecaster for a node kind; makes a new one when its device is reported."""
        name = fingerprint.device_name if fingerprint else None
        cached = self._forecasters.get(accelerator)
        if cached is None or cached[1] is None or name != cached[0]:
            forecaster = self._new_forecaster(accelerator, fingerprint)
            cached = self._forecasters[accelerator] = name, forecaster
        return cached[1]

    def _new_forecaster(
        self, accelerator: str, fingerprint: Fingerprint | None
    ) -> Forecaster | None:
        footprint = self._poll()
        device = device_of_workers(self._spec, self._cluster, fingerprint, accelerator)
        if footprint is None or device is None:
            return None
        return Forecaster(
            model=self._model, device=device, footprint=footprint, calibration=self._calibration
        )

    def _fail(self, error: str) -> None:
        self._failed = True
        self._problem = " ".join(error.split())


def _joint_prior(table: PlanTable, bases: Sequence[_Basis]) -> SearchPrior | None:
    """Joins the priors of all node kinds; None if one of them has no forecaster yet."""
    kinds, priors, rows = table.values["accelerator"], [], []
    for kind, (forecaster, limit) in zip(kinds, bases, strict=True):
        rows_of_kind = np.flatnonzero(table.is_value("accelerator", kind))
        prior = forecaster.prior(table.take(rows_of_kind), limit) if forecaster else None
        if prior is None:
            return None
        priors.append(prior)
        rows.append(rows_of_kind)
    return priors[0] if len(priors) == 1 else join_priors(priors, rows)


def _limit_bytes(
    state: SweepState, accelerator: str, fingerprint: Fingerprint | None
) -> int | None:
    specified = state.spec.on(accelerator).memory_limit_bytes
    device_bytes = fingerprint.device_memory_bytes if fingerprint else None
    return state.memory_limit_bytes or specified or device_bytes


def _fingerprint_on(state: SweepState, accelerator: str) -> Fingerprint | None:
    if not accelerator:
        return state.last_fingerprint
    return last_fingerprint([one for one in state.records if one.plan.accelerator == accelerator])


def device_of_workers(
    spec: SweepSpec, cluster: ClusterFacts, seen: Fingerprint | None, accelerator: str = ""
) -> Device | None:
    """Returns the device of a rank on a node kind, as specified or as reported by workers.

    Returns:
        None on CUDA until workers have reported their GPU, if plans name no node kind.

    Raises:
        DeviceError: If the GPU is unknown.
        SpecError: If the user's device file has faults.
    """
    specified = spec.cluster.accelerators.get(accelerator)
    if specified is not None and specified.gpu is not None:
        return find_device(specified.gpu)
    if cluster.device == CPU:
        return find_device(CPU)
    if seen is None and not accelerator:
        return None
    device = find_device(seen.device_name if seen else accelerator)
    per_node = spec.cluster.gpus_per_node
    return replace(device, node_devices=per_node) if per_node else device


def _on_device(
    records: Sequence[Record], accelerator: str, fingerprint: Fingerprint | None
) -> tuple[Record, ...]:
    """Selects the records on this device, since the study may have moved from another machine."""
    return tuple(
        record
        for record in records
        if record.plan.accelerator == accelerator
        and record.fingerprint is not None
        and (fingerprint is None or record.fingerprint.device_name == fingerprint.device_name)
    )
