"""A sweep, from a specification to its last record."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from orchestrator.cluster.background_trace import BackgroundTrace
from orchestrator.cluster.metrics import RayMetrics
from orchestrator.cluster.nodes import RayNodes
from orchestrator.cluster.runtime import connected
from orchestrator.controller import Driver, PlacingDriver
from orchestrator.core.events import SweepStarted
from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.placement import (
    CapacityRequest,
    Node,
    Placement,
    capacity_words,
    on_kind,
    room_for_groups,
)
from orchestrator.core.state import SweepState
from orchestrator.forecast.forecaster import TracedForecasts
from orchestrator.host import Termination, termination_as_interrupt
from orchestrator.study.locks import sole_driver
from orchestrator.study.study import Study, check_study
from orchestrator.study.warm_start import earlier_studies
from orchestrator.tracking.callback import AbstractCallback
from orchestrator.tracking.mlflow_callback import MlflowCallback
from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.tracking.provenance import provenance
from orchestrator.workspace import study_storage
from search_spaces.costs.calibration import Calibration, shipped_calibration
from search_spaces.costs.plan_encoding import variants_of
from search_spaces.errors import Fault, SpecError, StudyError
from search_spaces.facts import ClusterFacts, ModelFacts, Provenance
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from workers.prepare import prepare

MOST_GROUPS = 1000  # that are started where nobody says how many
# What a group's own processes take on the head node beside its workers, and what Ray and the
# driver take there without any: docs/scale.md
_GROUP_BYTES = 550 << 20
_HEAD_BYTES = 2 << 30
_JOB_FOLDER = "runtime_resources"  # in a session's folder, where working directories are unpacked


class Stopped(KeyboardInterrupt):
    """Somebody asked the sweep to stop, by a signal; what was under way is closed."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__()
        self.signum = signum


def run_sweep(
    spec: SweepSpec,
    name: str,
    listeners: Sequence[AbstractCallback],
    belief: Calibration | None = None,
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
        StudyLost: If the study's storage went away, for longer than the sweep waits.
        Stopped: On Ctrl-C and SIGTERM, after the trial under way was closed and all were told.
    """
    model = prepare(spec)
    check_tracking(spec)
    check_study(spec, name)
    source = provenance(spec, model, Path.cwd(), at=time.time())
    with (
        sole_driver(spec, name) as lock,
        connected(spec) as joined,
        termination_as_interrupt() as stopped,  # not before: Ray sets a handler of its own
    ):
        cluster, nodes = joined.facts, joined.nodes
        space = sweep_space(spec, model, cluster)
        on_head = groups_on_head(nodes.head_bytes())
        wanted, groups = wanted_groups(spec, space, nodes.up(), on_head)
        earlier = earlier_studies(spec, name) if spec.study.warm_start else ()
        study = Study(spec, name, space, earlier, lock)
        begun = SweepStarted(
            study=name,
            spec=spec,
            space=space,
            records=study.records(),
            memory_limit_bytes=None if cluster.accelerators else cluster.memory_limit_bytes,
            at=time.time(),
            validations=study.validations(),
            groups=groups,
        )
        tracing = BackgroundTrace(spec, variants_of(space.table), cluster.device)
        forecasts = TracedForecasts(
            spec, model, cluster, belief or shipped_calibration(), tracing.poll
        )
        told = (*_derived(spec, model, study.keep_provenance(source)), *listeners)
        try:
            driver = Driver(study, cluster, told, begun, forecasts=forecasts)
            if warning := _short_lived(spec):
                driver.note(warning)
            if others := set(nodes.all_up()) - set(nodes.up()):
                kinds = ", ".join(sorted({node.kind or "no name" for node in others}))
                driver.note(
                    f"nodes with other GPUs are left alone: {len(others)} ({kinds});"
                    " cluster.accelerators names the kinds to search among"
                )
            if groups > on_head:
                driver.note(
                    f"cluster.groups is {groups}, and the head node's memory serves {on_head}: it"
                    f" may be killed; each takes {_GROUP_BYTES >> 20} MiB there beside its workers"
                )
            study.say_through(driver.note)
            _run(driver, study, nodes, wanted, groups, stopped)
        except KeyboardInterrupt:
            raise Stopped(stopped.signum) from None
        finally:
            tracing.stop()
            for listener in reversed(told):
                listener.close()
    return driver.state


def _derived(
    spec: SweepSpec, model: ModelFacts, provenances: Sequence[Provenance]
) -> Iterator[AbstractCallback]:
    """Who keeps what others read of a sweep, all of it derived from the study."""
    if spec.tracking.enabled:
        yield MlflowCallback(model, provenances=provenances)
    yield RayMetrics()


def _short_lived(spec: SweepSpec) -> str | None:
    """What to say if the study is kept where Ray unpacked a job, and would go with it."""
    folder = Path(spec.study.folder).absolute()
    if study_storage(spec) or _JOB_FOLDER not in folder.parts:
        return None
    return (
        f"the study is kept in {folder}, which Ray removes some time after the job:"
        " set study.folder to an absolute path or study.storage to a database"
    )


def sweep_space(spec: SweepSpec, model: ModelFacts, cluster: ClusterFacts) -> Space:
    """The legal plans of a spec on a cluster.

    Raises:
        SpecError: If there are none.
    """
    around = RuleContext(spec=spec, model=model, cluster=cluster)
    return build_space(around, spec.cluster.ranks_of(cluster.slots))


def groups_on_head(head_bytes: int) -> int:
    """How many groups a head node can serve whose memory for Ray is so large; one at least."""
    return min(max((head_bytes - _HEAD_BYTES) // _GROUP_BYTES, 1), MOST_GROUPS)


def wanted_groups(
    spec: SweepSpec, space: Space, nodes: Sequence[Node], most: int = MOST_GROUPS
) -> tuple[tuple[CapacityRequest, ...], int]:
    """Room for the largest plan on each kind of nodes, and how many trials run at the same time.

    Args:
        spec: Says how many groups.
        space: The plans that they are to have room for.
        nodes: Those that are up.
        most: Groups that are started where the specification leaves open how many.

    Raises:
        SpecError: If there is no room for as many as are asked for: groups keep their workers,
            and each would wait for the others.
    """
    asked, share = spec.cluster.groups, spec.cluster.share_nodes
    each = tuple(_wanted_on(kind, space, nodes, spec) for kind in space.table.values["accelerator"])
    fit = sum(one.groups for one in each)
    if asked == "auto" or asked <= fit:
        return each, min(fit, most) if asked == "auto" else asked
    own = "" if share else " on nodes of their own; cluster.share_nodes: true lets them share"
    fault = Fault(
        path="cluster.groups",
        value=str(asked),
        advice=f"plans take up to {max(one.ranks for one in each)} ranks, and there is"
        f" {capacity_words(nodes)}: at most {fit} of them fit at the same time{own}",
    )
    raise SpecError("specification", (fault,))


def _wanted_on(kind: str, space: Space, nodes: Sequence[Node], spec: SweepSpec) -> CapacityRequest:
    """As many groups as are asked for on nodes of a kind, as far as all of its plans find room."""
    asked, share = spec.cluster.groups, spec.cluster.share_nodes
    table = space.table.take(space.table.is_value("accelerator", kind))
    tensor = table.column("tensor")
    ranks = tensor * table.column("pipeline") * table.column("data")
    most = MOST_GROUPS if asked == "auto" else asked
    if asked == "auto" and spec.cluster.workers == "auto":
        most = 1
    fit = most
    if most > 1:
        shapes = set(zip(ranks.tolist(), tensor.tolist(), strict=True))
        here = on_kind(nodes, kind)
        fit = min(room_for_groups(*shape, here, most, share=share) for shape in shapes)
    return CapacityRequest(
        groups=max(fit, 1),
        ranks=int(ranks.max()),
        tensor=int(tensor.max()),
        share=share,
        accelerator=kind,
    )


def _run(
    driver: Driver,
    study: Study,
    nodes: RayNodes,
    wanted: Sequence[CapacityRequest],
    groups: int,
    stopped: Termination,
) -> None:
    from orchestrator.cluster.loop import run_trials

    asked = driver.state.spec.cluster
    placing = PlacingDriver(driver, nodes, wanted=wanted, wait_seconds=asked.wait_minutes * 60)
    driver.repair()
    losable = LosableDriver(placing)
    try:
        run_trials(losable, groups)
    except KeyboardInterrupt:
        study.give_up_waiting()
        driver.cancel(f"stopped by {stopped}")
        raise
    if losable.lost is not None:
        raise losable.lost
    driver.end("Ray Tune has no more trials")


@final
class LosableDriver(AbstractDriver):
    """Stands between who runs trials and a driver, and keeps the error that ends it.

    Ray Tune would make a long trace of it. What is under way elsewhere comes to its end, and
    its result is told if the storage is back by then, or else kept beside the study.
    """

    def __init__(self, driver: AbstractDriver) -> None:
        self._driver = driver
        self.lost: StudyError | None = None

    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        if self.lost is None:
            with self._losses():
                return self._driver.propose(idle)
        return None

    def conclude(self, report: TrialReport) -> None:
        with self._losses():
            self._driver.conclude(report)

    def lose(self, number: int, notes: Sequence[str] = ()) -> None:
        with self._losses():
            self._driver.lose(number, notes)

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except StudyError as error:
            self.lost = self.lost or error
