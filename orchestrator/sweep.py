"""Runs a sweep: connects cluster, study, forecasts, callbacks and controller."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import TimeoutError as NotReady
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path

from orchestrator.cluster.metrics import RayMetrics
from orchestrator.cluster.runtime import ConnectedCluster, cluster_address, connected
from orchestrator.controller import Controller
from orchestrator.core.inputs import DriverStarted, StopRequested
from orchestrator.core.notes import start_notes
from orchestrator.core.placement import capacity_request, groups_on_head
from orchestrator.core.state import AbstractCallback, AbstractView, SweepState
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.forecaster import SweepForecasts, TracedForecasts
from orchestrator.forecast.mixes import with_mixes
from orchestrator.forecast.request import CPU, device_of
from orchestrator.host import Termination, check_limits, termination_as_interrupt
from orchestrator.journal import FILE, Journal
from orchestrator.report.reasons import groups_fault
from orchestrator.study.locks import DriverLock, exclusive_driver
from orchestrator.study.reader import earlier_studies, stored_job
from orchestrator.study.study import Study, check_study
from orchestrator.tracking.mlflow_callback import MlflowCallback, print_to_stderr
from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.tracking.provenance import provenance
from orchestrator.workspace import REPORT_FILE, SPEC_FILE, check_files, save_spec, study_storage
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import variants_of
from search_spaces.errors import SpecError
from search_spaces.facts import (
    ClusterFacts,
    DataProfile,
    ModelFacts,
    Provenance,
    Understanding,
    planned_cluster,
)
from search_spaces.hardware.catalogue import find_device
from search_spaces.rules.base import RuleContext
from search_spaces.safety.redaction import secret_values
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Activity, Stopped
from workers.models.facts import pinned
from workers.models.isolation import cancel_apart
from workers.prepare import prepare_driver
from workers.probe.operators import compile_operators
from workers.tracing.trace import trace_apart

Preparation = tuple[ModelFacts, DataProfile | None, dict[ClusterFacts, Space]]
_SOON_SECONDS = 0.5
# The trace runs next to starting workers, perhaps next to a trial: at this niceness it gets a
# third of the CPU time that each of them gets
_TRACE_NICENESS = 5


class SweepStopped(KeyboardInterrupt):
    """A signal stopped the sweep; its running trials are closed."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__()
        self.signum = signum


def run_sweep(spec: SweepSpec, name: str, callbacks: Sequence[AbstractCallback]) -> SweepState:
    """Runs trials on the cluster of a specification until the budget is used up.

    Most errors in the input are found before Ray starts; what takes longer to look at is looked at
    meanwhile. An existing study of the same name resumes.

    Args:
        spec: The specification.
        name: The name of the study.
        callbacks: Callbacks for events, closed at the end; views see what happens before as well.

    Returns:
        The final state.

    Raises:
        UserError: If model, data, cluster, study, tracking or this machine cannot be used.
        StudyLost: If the study's storage was unavailable for longer than the sweep waits.
        SweepStopped: On Ctrl-C and SIGTERM, once running trials are closed and callbacks notified.
    """
    check_limits(has_workers=cluster_address(spec) is None)
    with termination_as_interrupt() as termination:
        try:
            spec, show = _pinned(spec, name), partial(_show, callbacks)
            with ThreadPool(1) as pool:  # of a daemon: an interrupt does not wait for it
                preparation = pool.apply_async(_prepared, (spec,))
                # what is wrong with study, tracking, and usually the input, is found before Ray
                check_files(spec, *(f"{name}/{file}" for file in (SPEC_FILE, FILE, REPORT_FILE)))
                check_study(spec, name, print_to_stderr)
                check_tracking(spec)
                compile_seconds = 0.0  # ranks of another cluster compile as they start
                if cluster_address(spec) is None:
                    compile_seconds = compile_operators(spec, show, print_to_stderr)
                with contextlib.suppress(NotReady):
                    preparation.get(_SOON_SECONDS)
                return _connect_and_run(
                    spec, name, callbacks, termination, preparation, compile_seconds
                )
        except KeyboardInterrupt:
            raise SweepStopped(termination.signum) from None


def _connect_and_run(
    spec: SweepSpec,
    name: str,
    callbacks: Sequence[AbstractCallback],
    termination: Termination,
    preparation: AsyncResult[Preparation],
    compile_seconds: float,
) -> SweepState:
    with _resources(spec, name, termination, partial(_show, callbacks)) as (lock, connection):
        facts = connection.facts
        model, data, planned = preparation.get()
        source = provenance(data, Path.cwd(), at=time.time())
        save_spec(spec, name)  # a different job has not replaced it: see `check_study`
        space = planned.get(facts) or sweep_space(spec, model, facts)
        ranks = spec.cluster.ranks_of(facts.slots)
        understanding = Understanding(data=data, model=model, cluster=facts, ranks=ranks)
        study = Study(spec, name, space, lock)
        study.keep_understanding(understanding)
        started = _driver_started(study, spec, space, connection, compile_seconds)
        callbacks = (*_tracking(spec, study.keep_provenance(source)), *callbacks)
        journal = Journal(Path(spec.study.folder, name, FILE), print_to_stderr)
        try:
            with _background_trace(spec, space, facts) as poll:
                forecasts = TracedForecasts(spec, model, facts, shipped_calibration(), poll)
                return _run(started, study, connection, callbacks, forecasts, journal, termination)
        finally:
            for callback in (*reversed(callbacks), journal):
                callback.close()


@contextlib.contextmanager
def _background_trace(
    spec: SweepSpec, space: Space, facts: ClusterFacts
) -> Iterator[Callable[[], Footprint | None]]:
    """Traces the model in a process of its own; yields a function that polls for the footprint.

    If the user's model hangs or dies while it is traced, the sweep does not.
    """
    pool = ThreadPool(1)  # of a daemon
    options = {"device": facts.device, "niceness": _TRACE_NICENESS}
    tracing = pool.apply_async(trace_apart, (spec, variants_of(space.table)), options)
    pool.close()
    try:
        tracing.wait(_SOON_SECONDS)  # for a cached footprint
        yield lambda: tracing.get() if tracing.ready() else None
    finally:
        if not tracing.ready():
            cancel_apart()


@contextlib.contextmanager
def _resources(
    spec: SweepSpec, name: str, termination: Termination, show: Callable[[Activity], None]
) -> Iterator[tuple[DriverLock, ConnectedCluster]]:
    """Holds the study and the cluster. Signals stop it at any time, even while Ray starts."""
    with contextlib.ExitStack() as study:
        lock = study.enter_context(exclusive_driver(spec, name, print_to_stderr))
        with connected(spec, show) as connection:
            termination.handle()  # Ray has put a handler of its own in its place
            try:
                yield lock, connection
            finally:
                study.close()  # before Ray ends, which may take long


def _show(callbacks: Sequence[AbstractCallback], activity: Activity) -> None:
    for callback in callbacks:
        if isinstance(callback, AbstractView):
            callback.on_activity(replace(activity, at=time.time()))


def _pinned(spec: SweepSpec, name: str) -> SweepSpec:
    """Returns the specification with the commit that the study keeps."""
    earlier = stored_job(spec, name).get("model", {})
    revision = earlier.get("revision") if earlier.get("name") == spec.model.name else None
    return spec.model_copy(update={"model": pinned(spec.model, revision)})


def _prepared(spec: SweepSpec) -> Preparation:
    """Returns model and data of a specification, and its space on the cluster that it names.

    There is no space if the cluster decides. Without a legal plan no cluster needs to start.
    """
    model, data = prepare_driver(spec)
    if spec.cluster.workers == "auto":
        return model, data, {}
    facts = planned_cluster(spec, spec.cluster.workers)
    return model, data, {facts: sweep_space(spec, model, facts)}


def _tracking(spec: SweepSpec, provenances: Sequence[Provenance]) -> Iterator[AbstractCallback]:
    if spec.tracking.enabled:
        yield MlflowCallback(provenances=provenances)
    yield RayMetrics()


def _driver_started(
    study: Study,
    spec: SweepSpec,
    space: Space,
    connection: ConnectedCluster,
    compile_seconds: float,
) -> DriverStarted:
    """Returns the first input: what the study holds, and what the cluster has room for.

    Raises:
        SpecError: If the groups do not fit at the same time: they keep their workers, so some
            would wait.
    """
    nodes = connection.nodes
    up, room = nodes.up(), groups_on_head(nodes.head_bytes())
    request, groups = capacity_request(spec, space, up, room)
    if groups > request.groups:
        raise SpecError("specification", (groups_fault(request, groups, up),))
    started = study.driver_started(
        connection.facts,
        request,
        groups,
        time.time(),
        nodes_may_come=nodes.may_come,
        compile_seconds=compile_seconds,
    )
    folder = None if study_storage(spec) else Path(spec.study.folder).absolute()
    notes = (*started.notes, *start_notes(folder, groups, room, set(up), set(nodes.all_up())))
    return replace(started, notes=notes)


def sweep_space(spec: SweepSpec, model: ModelFacts, cluster: ClusterFacts) -> Space:
    """Returns the legal plans of a specification on a cluster.

    With `objective.memory_gib` they depend on a forecast, for `cluster.gpu` or this machine's.

    Raises:
        SpecError: If there are none.
        UserError: If the forecast has no device, or the model cannot be traced.
    """
    context = RuleContext(spec=spec, model=model, cluster=cluster)
    space = build_space(context, spec.cluster.ranks_of(cluster.slots))
    if spec.objective.memory_gib is None:
        return space
    on_cpu = cluster.device == CPU
    device = find_device(CPU) if on_cpu else device_of(spec, name=None, devices_per_node=None)
    trace = Footprints(spec, cluster.device, run_code=True)
    calibration = shipped_calibration().for_device(device)
    limit = cluster.memory_limit_bytes or device.memory_bytes
    return with_mixes(space, context, trace, device, calibration, limit)


def _run(
    started: DriverStarted,
    study: Study,
    connection: ConnectedCluster,
    callbacks: Sequence[AbstractCallback],
    forecasts: SweepForecasts,
    journal: Journal,
    termination: Termination,
) -> SweepState:
    from orchestrator.cluster.tune import TuneCluster, run_groups

    watchdog, show = connection.watchdog, partial(_show, callbacks)
    study.retries.waiting = watchdog.alive
    cluster = TuneCluster(connection.nodes, alive=watchdog.alive, show=show)
    secrets = secret_values(os.environ)
    earlier = earlier_studies(started.sweep.spec, started.sweep.study)
    controller = Controller(
        started, study, cluster, callbacks, forecasts, None, journal, secrets, earlier
    )
    watchdog.last_words = lambda fault: controller.give_up(Stopped(by=fault))

    def stop(by: str) -> None:
        study.retries.stop_retrying()
        controller.put(StopRequested(cause=Stopped(by=by), at=0.0))

    termination.deliver = lambda: stop(str(termination))
    if termination.came:  # and nothing was interrupted
        termination.deliver()
    try:
        run_groups(controller, cluster, started.sweep.groups)
    except OSError as error:  # this machine's, such as a full disk: no plan is to blame
        stop(str(error))
        controller.step()
        raise
    finally:
        termination.deliver = None
        watchdog.stop()
    if termination.came:
        raise KeyboardInterrupt
    if controller.error is not None:
        raise controller.error
    return controller.state.sweep
