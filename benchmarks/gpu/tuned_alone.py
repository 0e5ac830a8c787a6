"""A sweep without Ray: the controller of `plimsoll tune`, study and forecasts, on a lone worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import final

from benchmarks.gpu.choosing import space_of
from benchmarks.gpu.environment import variables
from benchmarks.gpu.lone_group import LoneGroup
from orchestrator.controller import Controller
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.controller_state import Phase
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import CapacityRequest, Node, Shortfall
from orchestrator.core.records import Record
from orchestrator.forecast.forecaster import TracedForecasts
from orchestrator.study.locks import exclusive_driver
from orchestrator.study.study import Study, check_study
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey, variants_of
from search_spaces.errors import ModelError
from search_spaces.spec.schema import SweepSpec
from workers.prepare import prepare
from workers.tracing.trace import trace


def tune(group: LoneGroup, spec: SweepSpec, name: str) -> tuple[Record, ...]:
    """Runs a sweep until its budget is used, as `plimsoll tune` does with one group.

    Raises:
        UserError: If model, data or study cannot be used, or no worker comes up.
    """
    model = prepare(spec)
    check_study(spec, name)
    began = time.time()
    here = group.here(spec)
    space = space_of(spec, here)
    with (
        exclusive_driver(spec, name) as lock,
        _tracing(spec, variants_of(space.table), here.device) as poll,
    ):
        study = Study(spec, name, space, (), lock)
        started = study.driver_started(here, (CapacityRequest(ranks=1),), 1, began)
        forecasts = TracedForecasts(spec, model, here, shipped_calibration(), poll)
        cluster = _LoneCluster(group)
        controller = Controller(started, study, cluster, forecasts=forecasts)
        controller.tick()
        while controller.state.phase is not Phase.DONE:
            controller.receive(group.run(cluster.given.pop()))
    if controller.error is not None:
        raise controller.error
    return controller.sweep.records


@final
class _LoneCluster(AbstractCluster):
    """This machine, with room for one rank and its group."""

    def __init__(self, group: LoneGroup) -> None:
        self._group = group
        self.given: list[Run] = []  # one at a time

    def nodes(self) -> tuple[Node, ...]:
        return (Node(id="here", slots=1),)

    def request_capacity(self, needs: Sequence[Shortfall]) -> None:
        """There is no more."""

    def start_group(self, group: str) -> None:
        """Its process starts with its first trial."""

    def send(self, group: str, message: Run | Release | Dismiss) -> None:
        match message:
            case Run():
                self.given.append(message)
            case Release():
                self._group.stop()

    def kill(self, group: str) -> None:
        raise AssertionError("each trial is awaited")


@contextmanager
def _tracing(
    spec: SweepSpec, wanted: tuple[VariantKey, ...], device: str
) -> Iterator[Callable[[], Footprint | None]]:
    """A trace under way in a process of its own, which holds nothing of the device."""
    processes = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with variables({"CUDA_VISIBLE_DEVICES": ""}):
        pending: Future[Footprint] = processes.submit(trace, spec, wanted, device=device)

    def poll() -> Footprint | None:
        try:
            return pending.result() if pending.done() else None
        except BrokenProcessPool as error:
            raise ModelError(f"the model cannot be traced: {error}") from None

    try:
        yield poll
    finally:
        processes.shutdown(wait=True, cancel_futures=True)
