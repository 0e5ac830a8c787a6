"""Forecasts that begin as soon as the model is traced and the device is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, final

from orchestrator.core.state import SweepState
from orchestrator.forecasting.base import AbstractForecasts
from orchestrator.forecasting.forecaster import Forecaster
from search_spaces.errors import UserError
from search_spaces.expectation import Expectation
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.footprint import Footprint
from search_spaces.forecast.belief import Belief
from search_spaces.forecast.prospects import Prospects
from search_spaces.hardware import Device, find_device
from search_spaces.plan import Plan
from search_spaces.record import Fingerprint, Record
from search_spaces.spec.schema import SweepSpec

CPU = "cpu"
_Told = TypeVar("_Told")
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
        self._forecaster: Forecaster | None = None
        self._device_name: str | None = None  # as workers told it when the forecaster was made
        # of which forecaster and limit they are, and themselves
        self._prospects: tuple[tuple[Forecaster, int | None], Prospects | None] | None = None
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
        seen = known_fingerprint(state)
        forecaster = self._up_to_date(seen)
        if forecaster is None:
            return None
        records = _of_the_device(state.records, seen)
        return forecaster.expectation(plan, records, _limit_bytes(state, seen))

    def _prospects_of(self, state: SweepState) -> Prospects | None:
        seen = known_fingerprint(state)
        forecaster, limit = self._up_to_date(seen), _limit_bytes(state, seen)
        if forecaster is None:
            return None
        if self._prospects is None or self._prospects[0] != (forecaster, limit):
            found = forecaster.prospects(state.space.table, limit)
            self._prospects = (forecaster, limit), found
        return self._prospects[1]

    def _up_to_date(self, seen: Fingerprint | None) -> Forecaster | None:
        name = seen.device_name if seen else None
        if self._forecaster is None or name != self._device_name:
            self._forecaster, self._device_name = self._begin(seen), name
        return self._forecaster

    def _begin(self, seen: Fingerprint | None) -> Forecaster | None:
        footprint = self._poll()
        device = device_of_workers(self._spec, self._cluster, seen)
        if footprint is None or device is None:
            return None
        return Forecaster(
            model=self._model, device=device, footprint=footprint, belief=self._belief
        )

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._problem = f"trials have no forecast: {' '.join(reason.split())}"


def _limit_bytes(state: SweepState, seen: Fingerprint | None) -> int | None:
    return state.memory_limit_bytes or (seen.device_memory_bytes if seen else None)


def known_fingerprint(state: SweepState) -> Fingerprint | None:
    """What the workers run on: as they told this driver, or an earlier one."""
    if state.fingerprint is not None:
        return state.fingerprint
    told = (record.fingerprint for record in reversed(state.records))
    return next((fingerprint for fingerprint in told if fingerprint is not None), None)


def device_of_workers(
    spec: SweepSpec, cluster: ClusterFacts, seen: Fingerprint | None
) -> Device | None:
    """The device of each rank; None on CUDA until workers have told which GPU theirs is.

    Raises:
        DeviceError: If nobody knows the GPU.
        SpecError: If a file of the user's devices has faults.
    """
    if cluster.device == CPU:
        return find_device(CPU)
    if seen is None:
        return None
    device = find_device(seen.device_name)
    per_node = spec.cluster.gpus_per_node
    return replace(device, node_devices=per_node) if per_node else device


def _of_the_device(records: Sequence[Record], seen: Fingerprint | None) -> tuple[Record, ...]:
    """A study that went on elsewhere says nothing of this device with its older records."""
    return tuple(
        record
        for record in records
        if record.fingerprint is not None
        and (seen is None or record.fingerprint.device_name == seen.device_name)
    )
