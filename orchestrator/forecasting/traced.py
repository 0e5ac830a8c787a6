"""Forecasts that begin as soon as the model is traced and the device is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, final

import numpy as np

from orchestrator.core.state import SweepState
from orchestrator.forecasting.base import AbstractForecasts
from orchestrator.forecasting.forecaster import Forecaster
from search_spaces.errors import UserError
from search_spaces.expectation import Expectation
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.footprint import Footprint
from search_spaces.forecast.belief import Belief
from search_spaces.forecast.prospects import Prospects, joined
from search_spaces.hardware import Device, find_device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.record import Fingerprint, Record
from search_spaces.spec.schema import SweepSpec

CPU = "cpu"
_Told = TypeVar("_Told")
_Basis = tuple[Forecaster | None, int | None]  # and what a rank may hold, in bytes
# What arithmetic raises on a footprint, a device file or a record that it was not made for.
# A forecast that cannot be made costs a sweep nothing.
_ARITHMETIC = (ArithmeticError, LookupError, ValueError)


@final
class TracedForecasts(AbstractForecasts):
    """Waits for nothing: before the trace has ended, nothing is expected."""

    def __init__(
        self,
        spec: SweepSpec,
        model: ModelFacts,
        cluster: ClusterFacts,
        belief: Belief,
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
        self._prospects: tuple[list[_Basis], Prospects | None] | None = None
        self._failed = False
        self._problem: str | None = None

    def expectation(self, plan: Plan, state: SweepState) -> Expectation | None:
        """What is expected of the plan, or None; what goes wrong ends forecasts alone."""
        return self._unless_failed(lambda: self._expected(plan, state))

    def prospects(self, state: SweepState) -> Prospects | None:
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

    def _expected(self, plan: Plan, state: SweepState) -> Expectation | None:
        forecaster, limit = self._basis(plan.accelerator, state)
        if forecaster is None:
            return None
        seen = known_fingerprint(state, plan.accelerator)
        records = _of_the_device(state.records, plan.accelerator, seen)
        return forecaster.expectation(plan, records, limit)

    def _prospects_of(self, state: SweepState) -> Prospects | None:
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


def _prospects(table: PlanTable, bases: Sequence[_Basis]) -> Prospects | None:
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
