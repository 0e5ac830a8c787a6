"""Forecasts of a model's plans on a device, calibrated by the records of the study."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, final

import numpy as np

from orchestrator.core.fingerprints import alike
from orchestrator.core.objective import Objective
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.forecast.calibration import MOST_RECORDS, calibrated
from orchestrator.forecast.request import CPU
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.forecast import SearchPrior, forecast, plan_forecast, search_prior
from search_spaces.costs.plan_encoding import VariantKey, plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.errors import UserError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.hardware.catalogue import find_device
from search_spaces.hardware.device import Device
from search_spaces.hardware.properties import find_or_estimate_device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Fingerprint, Measured, PlanForecast

_Result = TypeVar("_Result")
# Errors of the arithmetic on an unexpected footprint, device file or record: they end the forecasts
# but not the sweep
_ARITHMETIC = (ArithmeticError, LookupError, ValueError)


class Forecaster:
    """Forecasts plans on one device; equal arguments give equal results."""

    def __init__(
        self, *, model: ModelFacts, device: Device, footprint: Footprint, calibration: Calibration
    ) -> None:
        """Makes a forecaster of the plans whose variants the footprint has.

        `device` is that of each rank, and `calibration` the one before this study.
        """
        self._model = model
        self._device = device
        self._footprint = footprint
        self._calibration = calibration.for_device(device)
        self._variants: frozenset[VariantKey] = frozenset(
            VariantKey(*variant.key) for variant in footprint.variants
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
        try:
            return plan_forecast(work, 0, forecast(work, calibration, limit), len(measured))
        except FloatingPointError:
            return None

    def prior(
        self, table: PlanTable, limit_bytes: int | None, objective: Objective
    ) -> SearchPrior | None:
        """Returns the prior of a search: forecasts of plans before any record.

        Args:
            table: Plans of the model.
            limit_bytes: Memory limit of one rank; the device's memory if None.
            objective: What it leaves of the limit.

        Returns:
            None if the footprint lacks a plan's variant, or a value is not finite.
        """
        if not self._variants.issuperset(variants_of(table)):
            return None
        limit = float(self._device.memory_bytes if limit_bytes is None else limit_bytes)
        limit = objective.effective_limit(limit)
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


class SweepForecasts:
    """Forecasts of a sweep's plans: none. A missing forecast is None and delays no trial."""

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        """Forecasts a plan, calibrated by the sweep's records; None without a forecast."""

    def prior(self, state: SweepState) -> SearchPrior | None:
        """Returns the prior of the search for all plans of the space; None without forecasts.

        Returns the same object until something that it depends on changes.
        """

    def problem(self) -> str | None:
        """Returns the error that ended the forecasts, once; then None."""


_Basis = tuple[Forecaster | None, int | None]  # with the memory limit of a rank, in bytes


@final
class TracedForecasts(SweepForecasts):
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
        self._forecaster: Forecaster | None = None
        self._forecaster_device: str | None = None  # as reported when it was made
        # With the forecaster and limit that it was made from
        self._prior: tuple[_Basis, SearchPrior | None] | None = None
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
        forecaster, limit = self._basis(state)
        if forecaster is None:
            return None
        # the study may have moved, or been updated
        records = alike(state.records, state.last_fingerprint)
        return forecaster.expectation(plan, records, limit)

    def _search_prior(self, state: SweepState) -> SearchPrior | None:
        basis = forecaster, limit = self._basis(state)
        if self._prior is None or self._prior[0] != basis:
            prior = None
            if forecaster is not None:
                prior = forecaster.prior(state.space.table, limit, state.objective)
            self._prior = basis, prior
        return self._prior[1]

    def _basis(self, state: SweepState) -> _Basis:
        """Returns the forecaster, made anew when its device is reported, and the memory limit."""
        fingerprint = state.last_fingerprint
        name = fingerprint.device_name if fingerprint else None
        if self._forecaster is None or name != self._forecaster_device:
            self._forecaster, self._forecaster_device = self._new_forecaster(fingerprint), name
        device_bytes = fingerprint.device_memory_bytes if fingerprint else None
        specified = state.memory_limit_bytes or state.spec.memory_limit_bytes
        limits = [limit for limit in (specified, device_bytes) if limit]
        return self._forecaster, min(limits, default=None)

    def _new_forecaster(self, fingerprint: Fingerprint | None) -> Forecaster | None:
        footprint = self._poll()
        device = device_of_workers(self._spec, self._cluster, fingerprint)
        if footprint is None or device is None:
            return None
        return Forecaster(
            model=self._model, device=device, footprint=footprint, calibration=self._calibration
        )

    def _fail(self, error: str) -> None:
        self._failed = True
        self._problem = " ".join(error.split())


def device_of_workers(
    spec: SweepSpec, cluster: ClusterFacts, seen: Fingerprint | None
) -> Device | None:
    """Returns the device of a rank, as reported by workers.

    Returns:
        None on CUDA until workers have reported their GPU.

    Raises:
        DeviceError: If the GPU is unknown and cannot be estimated.
        SpecError: If the user's device file has faults.
    """
    if cluster.device == CPU:
        return find_device(CPU).with_launches(seen.launches if seen else None)
    if seen is None:
        return None
    device = find_or_estimate_device(seen.device_name, seen.device_memory_bytes, seen.properties)
    device = device.with_launches(seen.launches)
    host_bytes = spec.host_memory_bytes or seen.host_memory_bytes
    return device.in_node(spec.cluster.gpus_per_node, host_bytes)
