"""Runs a sweep: connects cluster, study, forecasts, callbacks and controller."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.cluster.background_trace import BackgroundTrace
from orchestrator.cluster.metrics import RayMetrics
from orchestrator.cluster.nodes import RayNodes
from orchestrator.cluster.runtime import ConnectedCluster, cluster_address, connected, own_head
from orchestrator.cluster.watchdog import Watchdog
from orchestrator.controller import Controller
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.inputs import StopRequested
from orchestrator.core.notes import Message
from orchestrator.core.placement import (
    GROUP_BYTES,
    CapacityRequest,
    Node,
    capacities,
    capacity_request,
    groups_on_head,
)
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.forecast.forecaster import TracedForecasts
from orchestrator.host import Termination, termination_as_interrupt
from orchestrator.report.reasons import capacity_words
from orchestrator.study.locks import DriverLock, exclusive_driver
from orchestrator.study.reader import stored_job
from orchestrator.study.study import Study, check_study
from orchestrator.study.warm_start import earlier_studies
from orchestrator.tracking.decisions import decision_line, decisions_file
from orchestrator.tracking.events import LineFile
from orchestrator.tracking.mlflow_callback import MlflowCallback, print_to_stderr
from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.tracking.provenance import provenance
from orchestrator.workspace import save_spec, study_storage
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.plan_encoding import variants_of
from search_spaces.errors import Fault, SpecError
from search_spaces.facts import (
    ClusterFacts,
    DataProfile,
    ModelFacts,
    Provenance,
    Understanding,
    planned_cluster,
)
from search_spaces.rules.base import RuleContext
from search_spaces.safety.redaction import secret_values
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Stopped
from workers.models.facts import pinned
from workers.prepare import prepare_driver
from workers.probe.operators import compile_operators

_JOB_FOLDER = "runtime_resources"  # of a Ray session, where working directories are unpacked


class SweepStopped(KeyboardInterrupt):
    """A signal stopped the sweep; its running trials are closed."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__()
        self.signum = signum


def run_sweep(spec: SweepSpec, name: str, callbacks: Sequence[AbstractCallback]) -> SweepState:
    """Runs trials on the cluster of a specification until the budget is used up.

    Errors in the input are found before Ray starts. An existing study of the same name resumes.

    Args:
        spec: The specification.
        name: The name of the study.
        callbacks: Callbacks for events; closed at the end.

    Returns:
        The final state.

    Raises:
        UserError: If model, data, cluster, study or tracking cannot be used.
        StudyLost: If the study's storage was unavailable for longer than the sweep waits.
        Stopped: On Ctrl-C and SIGTERM, after running trials were closed and callbacks notified.
    """
    with termination_as_interrupt() as termination:
        try:
            return _prepare_and_run(spec, name, callbacks, termination)
        except KeyboardInterrupt:
            raise SweepStopped(termination.signum) from None


def _prepare_and_run(
    spec: SweepSpec,
    name: str,
    callbacks: Sequence[AbstractCallback],
    termination: Termination,
) -> SweepState:
    spec, model, data = _prepared(spec, name)
    planned = _planned_space(spec, model)
    check_study(spec, name, print_to_stderr)
    check_tracking(spec)
    if cluster_address(spec) is None:
        compile_operators(spec, print_to_stderr)
    save_spec(spec, name)  # a different job has not replaced it: see `check_study`
    source = provenance(data, Path.cwd(), at=time.time())
    with _resources(spec, name, termination) as (lock, connection):
        facts, nodes = connection.facts, connection.nodes
        space = planned.get(facts) or sweep_space(spec, model, facts)
        head_groups = groups_on_head(nodes.head_bytes())
        request, groups = capacity_request(spec, space, nodes.up(), head_groups)
        check_groups(request, groups, nodes.up())
        earlier = earlier_studies(spec, name) if spec.study.warm_start else ()
        study = Study(spec, name, space, lock)
        understanding = Understanding(
            data=data,
            model=model,
            cluster=facts,
            ranks=spec.cluster.ranks_of(facts.slots),
        )
        started = replace(
            study.driver_started(
                facts, request, groups, time.time(), nodes_may_come=nodes.may_come
            ),
            understanding=understanding,
        )
        study.keep_understanding(understanding)
        callbacks = (*_tracking(spec, study.keep_provenance(source)), *callbacks)
        tracing = BackgroundTrace(spec, variants_of(space.table), facts.device)
        forecasts = TracedForecasts(spec, model, facts, shipped_calibration(), tracing.poll)
        warnings = tuple(_warnings(spec, nodes, groups, head_groups))
        decisions = LineFile(decisions_file(spec, name), print_to_stderr)
        try:
            controller_of = partial(
                Controller,
                started,
                study,
                callbacks=callbacks,
                forecasts=forecasts,
                decided=lambda *decision: decisions.append(decision_line(*decision)),
                secrets=secret_values(os.environ),
                earlier=earlier,
            )
            return _run(controller_of, study, nodes, groups, warnings, termination)
        finally:
            tracing.stop()
            decisions.close()
            for callback in reversed(callbacks):
                callback.close()


@contextlib.contextmanager
def _resources(
    spec: SweepSpec, name: str, termination: Termination
) -> Iterator[tuple[DriverLock, ConnectedCluster]]:
    """Holds the study and the cluster. Signals stop it at any time, even while Ray starts."""
    with contextlib.ExitStack() as study:
        lock = study.enter_context(exclusive_driver(spec, name, print_to_stderr))
        with connected(spec) as connection:
            termination.handle()  # Ray has put a handler of its own in its place
            try:
                yield lock, connection
            finally:
                study.close()  # before Ray ends, which may take long


def _prepared(spec: SweepSpec, name: str) -> tuple[SweepSpec, ModelFacts, DataProfile | None]:
    """Returns the specification with the commit that the study keeps, and its model and data."""
    earlier = stored_job(spec, name).get("model", {})
    revision = earlier.get("revision") if earlier.get("name") == spec.model.name else None
    spec = spec.model_copy(update={"model": pinned(spec.model, revision)})
    return spec, *prepare_driver(spec)


def _tracking(spec: SweepSpec, provenances: Sequence[Provenance]) -> Iterator[AbstractCallback]:
    if spec.tracking.enabled:
        yield MlflowCallback(provenances=provenances)
    yield RayMetrics()


def _warnings(spec: SweepSpec, nodes: RayNodes, groups: int, head_groups: int) -> Iterator[str]:
    """Yields notes on a study that Ray will remove, unused nodes, and a head node that is full."""
    folder = Path(spec.study.folder).absolute()
    if not study_storage(spec) and _JOB_FOLDER in folder.parts:
        yield (
            f"the study is kept in {folder}, which Ray removes some time after the job:"
            " set study.folder to an absolute path or study.storage to a database"
        )
    if unused := set(nodes.all_up()) - set(nodes.up()):
        kinds = ", ".join(sorted({node.kind or "no name" for node in unused}))
        yield (
            f"nodes with other GPUs are not used: {len(unused)} ({kinds});"
            " cluster.accelerator chooses the kind to use"
        )
    if groups > head_groups:
        yield (
            f"cluster.groups is {groups}, but the head node has memory for {head_groups}: it may be"
            f" killed; each group takes {GROUP_BYTES >> 20} MiB there, in addition to its workers"
        )


def _planned_space(spec: SweepSpec, model: ModelFacts) -> dict[ClusterFacts, Space]:
    """Returns the space on a cluster as the specification names it; empty if the cluster decides.

    Without a legal plan no cluster needs to start.
    """
    if spec.cluster.workers == "auto":
        return {}
    facts = planned_cluster(spec, spec.cluster.workers)
    return {facts: sweep_space(spec, model, facts)}


def sweep_space(spec: SweepSpec, model: ModelFacts, cluster: ClusterFacts) -> Space:
    """Returns the legal plans of a specification on a cluster.

    Raises:
        SpecError: If there are none.
    """
    context = RuleContext(spec=spec, model=model, cluster=cluster)
    return build_space(context, spec.cluster.ranks_of(cluster.slots))


def check_groups(request: CapacityRequest, groups: int, nodes: Sequence[Node]) -> None:
    """Checks that groups fit at the same time: they keep their workers, so some would wait.

    Raises:
        SpecError: If they do not.
    """
    if groups <= request.groups:
        return
    unshared = (
        "" if request.share else " without sharing nodes; cluster.share_nodes: true lets them share"
    )
    fault = Fault(
        path="cluster.groups",
        value=str(groups),
        advice=f"plans take up to {request.ranks} ranks; available:"
        f" {capacity_words(capacities(nodes))}; at most {request.groups} groups fit at the same"
        f" time{'' if request.share else unshared}",
    )
    raise SpecError("specification", (fault,))


def _run(
    controller_of: Callable[[AbstractCluster], Controller],
    study: Study,
    nodes: RayNodes,
    groups: int,
    warnings: Sequence[str],
    termination: Termination,
) -> SweepState:
    from orchestrator.cluster.tune import TuneCluster, run_groups

    def last_words(fault: str) -> None:
        controller.give_up(Stopped(by=fault))

    watchdog = Watchdog(os.EX_TEMPFAIL, last_words, head=own_head)
    study.when_waiting(watchdog.alive)
    cluster = TuneCluster(nodes, alive=watchdog.alive)
    controller = controller_of(cluster)

    def stop(by: str) -> None:
        study.stop_retrying()
        controller.put(StopRequested(cause=Stopped(by=by), at=0.0))

    termination.deliver = lambda: stop(str(termination))
    controller.note(*(Message(text=warning) for warning in warnings))
    try:
        run_groups(controller, cluster, groups)
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
