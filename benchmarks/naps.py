"""Trials that sleep as long as their forecast says, in the place of workers that train."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from orchestrator.controller import Driver
from orchestrator.core.events import SweepStarted
from orchestrator.core.messages import Assignment, Later, TrialReport
from orchestrator.core.placement import Placement
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.forecast.forecaster import AbstractForecasts
from orchestrator.study.study import Study
from search_spaces.costs.forecast import SearchPrior
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.trial import (
    Anatomy,
    Conditions,
    Costs,
    Estimate,
    Measured,
    MemoryReading,
    Outcome,
    OutOfMemory,
    Phases,
    PlanForecast,
)

LIMIT_BYTES = 2**34
BATCH = 512
_START_SECONDS, _STEPS = 15.0, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Nap(Assignment):
    """A trial that sleeps, and what it then tells."""

    seconds: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class NapReport(TrialReport):
    """What a sleeper tells; `group` says which one it is."""

    group: int


def sleeper() -> type[Any]:
    """Who stands where a group of workers would run trials."""
    from orchestrator.cluster.loop import GroupRunner

    class Sleeper(GroupRunner):
        def run(self, given: Assignment) -> NapReport:
            assert isinstance(given, Nap)
            began = time.time()
            time.sleep(given.seconds)
            return NapReport(
                number=given.request.number,
                outcome=given.outcome,
                fingerprint=None,
                notes=(),
                started_at=began,
                ended_at=time.time(),
                group=os.getpid(),
            )

    return Sleeper


class Told(AbstractForecasts):
    """Forecasts of a space by plain arithmetic: as GPUs behave, and 16 GiB that few plans fill."""

    def __init__(self, table: PlanTable) -> None:
        self._table = table

    @cached_property
    def _all(self) -> SearchPrior:
        table = self._table
        micro, ratio = table.column("micro_batch"), table.column("checkpoint_ratio")
        slow = 1 + 0.33 * ratio + 0.4 * table.is_value("attention", "eager")
        rate = 300 * micro / (micro + 6) / slow
        share = 0.25 + 0.02 * micro * (1 - 0.8 * ratio) * (1 + table.is_value("attention", "eager"))
        parts = np.stack([np.full(len(table), 0.2), 0.1 * ratio], axis=1)
        return SearchPrior(
            log_rate=np.log(rate),
            rate_parts=parts,
            log_share=np.log(share),
            share_parts=parts,
            step_seconds=BATCH / rate,
        )

    def prior(self, state: SweepState) -> SearchPrior:
        """Of all plans."""
        return self._all

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        """None: no deadline is needed."""
        return None

    def problem(self) -> str | None:
        """None."""
        return None

    def nap(self, given: Assignment) -> Nap:
        """The trial of a plan, as forecast."""
        row = int(self._table.rows_of(given.request.plan)[0])
        step, share = self._all.step_seconds[row], float(np.exp(self._all.log_share[row]))
        seconds = _START_SECONDS + _STEPS * step * (share <= 1)
        return Nap(
            request=given.request,
            device=given.device,
            deadline_seconds=given.deadline_seconds,
            folder=given.folder,
            placement=given.placement,
            seconds=float(seconds),
            outcome=_outcome(float(step), share),
        )


class SleepingDriver(Driver):
    """The driver, whose trials sleep; keeps when each was handed out, slept and was told."""

    def __init__(
        self,
        told: Told,
        study: Study,
        cluster: ClusterFacts,
        callbacks: Sequence[AbstractCallback],
        begun: SweepStarted,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(study, cluster, callbacks, begun, clock, forecasts=told)
        self._told_of = told
        self.slept: list[NapReport] = []
        self.asks: list[float] = []
        self.handed: list[float] = []
        self.waits: list[float] = []  # from a trial's end until the driver knows of it
        self._handed_of: dict[int, float] = {}
        self.begins: list[float] = []  # from when a trial is handed out until it sleeps

    def propose(
        self, idle: Sequence[Placement] = (), kinds: Collection[str] | None = None
    ) -> Assignment | Later | None:
        """The next nap."""
        began = time.time()
        given = super().propose(idle, kinds)
        if not isinstance(given, Assignment):
            return given
        self.handed.append(time.time())
        self.asks.append(self.handed[-1] - began)
        self._handed_of[given.request.number] = self.handed[-1]
        return self._told_of.nap(given)

    def conclude(self, report: TrialReport) -> None:
        """Keeps when it slept."""
        assert isinstance(report, NapReport)
        self.slept.append(report)
        self.waits.append(time.time() - report.ended_at)
        self.begins.append(report.started_at - self._handed_of.pop(report.number))
        super().conclude(report)


def _outcome(step: float, share: float) -> Outcome:
    held = int(share * LIMIT_BYTES)
    costs = Costs(
        build_seconds=_START_SECONDS,
        steps_seconds=_STEPS * step,
        total_seconds=_START_SECONDS + _STEPS * step,
        residual_bytes=0,
    )
    if share > 1:
        return OutOfMemory(
            where="device",
            wanted_bytes=held,
            limit_bytes=LIMIT_BYTES,
            rank=0,
            phase="backward",
            detail="slept",
            costs=costs,
        )
    rate = BATCH / step
    nothing = Anatomy(
        weights=0, gradients=0, optimizer_states=0, activations=held, fragmentation=0, outside=0
    )
    return Measured(
        samples_per_second=Estimate(value=rate, low=rate * 0.99, high=rate * 1.01),
        tokens_per_second=rate,
        step_seconds=Estimate(value=step, low=step * 0.99, high=step * 1.01),
        phases=Phases(data=0, forward=0, backward=step, optimizer=0),
        mfu=None,
        flops_per_step=None,
        memory=MemoryReading(
            rank=0,
            limit_bytes=LIMIT_BYTES,
            peak_bytes=held,
            reserved_bytes=held,
            allocated_bytes=held,
            anatomy=nothing,
        ),
        conditions=Conditions(
            host_cpu_percent=None,
            host_memory_percent=None,
            device_utilisation_percent=None,
            device_power_watts=None,
            device_memory_bytes=None,
            throttled=(),
        ),
        warmup_steps=2,
        measured_steps=_STEPS - 2,
        losses=(),
        costs=costs,
    )
