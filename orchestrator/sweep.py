"""A sweep, from a specification to its last record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.events import SweepStarted
from orchestrator.core.state import SweepState
from orchestrator.driver import Driver
from orchestrator.forecasting import TracedForecasts
from orchestrator.listener import AbstractListener
from orchestrator.mlflow_tracking import MlflowListener, check_tracking
from orchestrator.ray_cluster import connected
from orchestrator.ray_trace import BackgroundTrace
from orchestrator.study import Study, check_study, earlier_studies
from orchestrator.termination import termination_as
from search_spaces.errors import Fault, SpecError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.forecast.belief import Belief, shipped_belief
from search_spaces.forecast.planned import variants_of
from search_spaces.rules import Surroundings
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from workers.preparation import prepare


class Stopped(Exception):
    """Somebody asked the sweep to stop; says how."""


def run_sweep(
    spec: SweepSpec,
    name: str,
    listeners: Sequence[AbstractListener],
    belief: Belief | None = None,
) -> SweepState:
    """Measures plans until the budget is used, on the cluster that the spec names.

    What can be wrong with the input is found before Ray is started. A study of the same name
    goes on where it stopped.

    Args:
        spec: What is measured.
        name: The study's.
        listeners: Who is told what happens; closed at the end.
        belief: What forecasts start from; what ships with Plimsoll if None.

    Raises:
        UserError: If model, data, cluster, study or tracking cannot be used.
        KeyboardInterrupt: On Ctrl-C, after the trial under way was closed and all were told.
    """
    model = prepare(spec)
    check_tracking(spec)
    check_study(spec, name)
    tracking = (MlflowListener(),) if spec.tracking.enabled else ()
    with connected(spec) as cluster:
        space = sweep_space(spec, model, cluster)
        earlier = earlier_studies(spec, name) if spec.study.warm_start else ()
        study = Study(spec, name, space, earlier)
        begun = SweepStarted(
            study=name,
            spec=spec,
            space=space,
            records=study.records(),
            memory_limit_bytes=cluster.memory_limit_bytes,
            at=time.time(),
            proofs=study.proofs(),
        )
        tracing = BackgroundTrace(spec, variants_of(space.table), cluster.device)
        forecasts = TracedForecasts(spec, model, cluster, belief or shipped_belief(), tracing.poll)
        try:
            driver = Driver(study, cluster, (*tracking, *listeners), begun, forecasts=forecasts)
            if warning := _short_lived(spec):
                driver.note(warning)
            _run(driver)
        finally:
            tracing.stop()
            for listener in (*listeners, *tracking):
                listener.close()
    return driver.state


def _short_lived(spec: SweepSpec) -> str | None:
    """What to say if the study is kept where Ray unpacked a job, and would go with it."""
    folder = Path(spec.study.folder).absolute()
    if spec.study.storage or _JOB_FOLDER not in folder.parts:
        return None
    return (
        f"the study is kept in {folder}, which Ray removes some time after the job:"
        " set study.folder to an absolute path or study.storage to a database"
    )


_JOB_FOLDER = "runtime_resources"  # in a session's folder, where working directories are unpacked


def sweep_space(spec: SweepSpec, model: ModelFacts, cluster: ClusterFacts) -> Space:
    """The legal plans of a spec on a cluster.

    Raises:
        SpecError: If there are none, or the cluster has no room for so many groups.
    """
    around = Surroundings(spec=spec, model=model, cluster=cluster)
    space = build_space(around, spec.cluster.ranks_of(cluster.slots))
    _check_room(spec, space, cluster)
    return space


def _check_room(spec: SweepSpec, space: Space, cluster: ClusterFacts) -> None:
    """Groups keep their workers: with too many of them, each would wait for the others."""
    table, groups = space.table, spec.cluster.groups
    ranks = int((table.column("tensor") * table.column("pipeline") * table.column("data")).max())
    if groups > 1 and groups * ranks > cluster.slots:
        fault = Fault(
            path="cluster.groups",
            value=str(groups),
            advice=f"plans take up to {ranks} of the cluster's {cluster.slots} ranks:"
            f" at most {max(cluster.slots // ranks, 1)} fit at the same time",
        )
        raise SpecError("specification", (fault,))


def _run(driver: Driver) -> None:
    from orchestrator.ray_tune import run_trials  # imports Ray, which reads its environment then

    driver.repair()
    try:
        with termination_as(Stopped):
            run_trials(driver, driver.state.spec.cluster.groups)
    except KeyboardInterrupt:
        driver.cancel("stopped by Ctrl-C")
        raise
    except Stopped as stopped:
        driver.cancel(str(stopped))
    driver.end("Ray Tune has no more trials")
