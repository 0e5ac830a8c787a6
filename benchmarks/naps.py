"""Trials that sleep as long as their forecast says, in the place of workers that train."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from orchestrator.core.events import Event, TrialStarted
from orchestrator.core.inputs import DriverStarted, Input, PlanProposed, TrialFinished
from orchestrator.core.instructions import Instruction, Run
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.forecast.forecaster import AbstractForecasts
from search_spaces.costs.forecast import SearchPrior
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
class Nap:
    """A trial that sleeps, and what it then reports."""

    seconds: float
    outcome: Outcome


def nap_of(plan: Plan) -> Nap:
    """The trial of a plan, as forecast."""
    rate, share = _rate_and_share(
        plan.micro_batch, plan.checkpoint_ratio, plan.attention == "eager"
    )
    seconds = _START_SECONDS + _STEPS * BATCH / rate * (share <= 1)
    return Nap(seconds=seconds, outcome=_outcome(BATCH / rate, share))


def sleeper() -> type[Any]:
    """Returns a class that sleeps where a group of workers would run trials."""
    from orchestrator.cluster.loop import GroupRunner
    from orchestrator.cluster.worker_group import WarmGroup

    class Sleeping(WarmGroup):
        def run(self, run: Run) -> TrialFinished:
            nap, began = nap_of(run.request.plan), time.time()
            time.sleep(nap.seconds)
            return report_of(run, nap.outcome, began, time.time())

    class Sleeper(GroupRunner):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config)
            self._group = Sleeping()

    return Sleeper


def report_of(run: Run, outcome: Outcome, began: float, ended: float) -> TrialFinished:
    """A report on a trial without workers."""
    return TrialFinished(
        group=run.group,
        number=run.request.number,
        validation=run.request.validation,
        outcome=outcome,
        fingerprint=None,
        started_at=began,
        ended_at=ended,
    )


class Told(AbstractForecasts):
    """Forecasts of a space by plain arithmetic: as GPUs behave, and 16 GiB that few plans fill."""

    def __init__(self, table: PlanTable) -> None:
        self._table = table

    @cached_property
    def _all(self) -> SearchPrior:
        table = self._table
        ratio = table.column("checkpoint_ratio")
        rate, share = _rate_and_share(
            table.column("micro_batch"), ratio, table.is_value("attention", "eager")
        )
        parts = np.stack([np.full(len(table), 0.2), 0.1 * ratio], axis=1)
        return SearchPrior(
            log_rate=np.log(rate),
            rate_parts=parts,
            log_share=np.log(share),
            share_parts=parts,
            step_seconds=BATCH / rate,
        )

    def prior(self, state: SweepState) -> SearchPrior:
        """Returns the forecasts of all plans."""
        return self._all

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        """None: no deadline is needed."""
        return None

    def problem(self) -> str | None:
        """None."""
        return None


class Watch(AbstractCallback):
    """Keeps when a controller was asked for trials, handed them out and had their reports."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Starts with nothing.

        Args:
            clock: The controller's.
        """
        self.slept: list[TrialFinished] = []
        self.asks: list[float] = []  # seconds for a choice, the study's write included
        self.handed: list[float] = []
        self.waits: list[float] = []  # from a trial's end until the driver knows of it
        self.begins: list[float] = []  # from when a trial is handed out until it sleeps
        self._clock = clock
        self._handed_of: dict[int, float] = {}
        self._asked_at = 0.0

    def decided(self, given: DriverStarted | Input, instructions: Sequence[Instruction]) -> None:
        """Keeps when a plan was asked for, and reports."""
        match given:
            case PlanProposed():
                self._asked_at = given.at - (given.ask_seconds or 0.0)
            case TrialFinished():
                self.slept.append(given)
                self.waits.append(given.at - given.ended_at)
                self.begins.append(given.started_at - self._handed_of.pop(given.number))

    def on_event(self, event: Event, state: SweepState) -> None:
        """Keeps when a trial was handed out."""
        if isinstance(event, TrialStarted):
            now = self._handed_of[event.number] = self._clock()
            self.handed.append(now)
            if event.ask_seconds is not None:
                self.asks.append(now - self._asked_at)

    def close(self) -> None:
        """Nothing is left to do."""


def _rate_and_share(micro: Any, ratio: Any, eager: Any) -> tuple[Any, Any]:
    """Samples per second, and the share of the memory: of one plan, or of the rows of a table."""
    rate = 300 * micro / (micro + 6) / (1 + 0.33 * ratio + 0.4 * eager)
    return rate, 0.25 + 0.02 * micro * (1 - 0.8 * ratio) * (1 + eager)


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
