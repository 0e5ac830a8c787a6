"""A sweep without Ray: the driver of `plimsoll tune`, its study and forecasts, on a lone worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context

from benchmarks.gpu.choosing import space_of
from benchmarks.gpu.environment import variables
from benchmarks.gpu.lone_group import LoneGroup
from orchestrator.controller import Driver
from orchestrator.core.events import SweepStarted
from orchestrator.core.messages import Later
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
        begun = SweepStarted(
            study=name,
            spec=spec,
            space=space,
            records=study.records(),
            memory_limit_bytes=here.memory_limit_bytes,
            at=began,
            validations=study.validations(),
        )
        forecasts = TracedForecasts(spec, model, here, shipped_calibration(), poll)
        driver = Driver(study, here, (), begun, forecasts=forecasts)
        driver.repair()
        while (given := driver.propose()) is not None:
            assert not isinstance(given, Later), "nothing is under way that could be waited for"
            driver.conclude(group.run(given))
    return driver.state.records


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
