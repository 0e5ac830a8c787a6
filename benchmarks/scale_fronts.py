"""Fronts that hand out trials on a simulated cluster: Plimsoll's driver, or Ray's OptunaSearch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from benchmarks.naps import BATCH, LIMIT_BYTES, Told, Watch, nap_of, report_of
from benchmarks.plain_ray_tune import WORTHLESS, choices, plan_of
from benchmarks.virtual import AbstractFront, Clock
from orchestrator.cluster.metrics import RayMetrics
from orchestrator.controller import Controller
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import CapacityRequest, Node, Shortfall
from orchestrator.study.study import Study
from orchestrator.tracking.events import EventFile
from search_spaces.facts import ClusterFacts
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured
from workers.models.load import describe

GPUS = 8  # of a node; a trial takes them all
REFUSED_SECONDS = 0.0  # that plain Ray Tune's trial takes of a plan which no rule allows


def spec_for(folder: str, groups: int, trials: int) -> SweepSpec:
    """Sixteen thousand plans on the eight ranks of a node.

    Every combination is legal: plain Ray Tune, which knows no rules, would spend most of its trials
    on what is not, and what is compared here is how much a driver can do.
    """
    return SweepSpec.model_validate(
        {
            "model": "gpt2",
            "cluster": {"device": "cuda", "workers": GPUS, "groups": groups},
            "train": {"global_batch": BATCH, "sequence_length": 1024},
            "space": {
                "micro_batch": [1, 2, 4, 8, 16, 32, 64],
                "zero_stage": [0, 2, 3],
                "tensor": [1],
                "checkpoint_ratio": [part / 12 for part in range(1, 13)],
                "checkpoint_mode": ["full", "selective"],
                "attention": ["sdpa", "eager"],
                "optimizer": ["adamw_fused", "adamw_foreach"],
                "loader_workers": [0, 1, 2, 4],
            },
            "budget": {"trials": trials, "minutes": 1e6},
            "validation": {"enabled": False},
            "study": {"folder": folder, "warm_start": False},
        }
    )


def cluster_of(nodes: int) -> ClusterFacts:
    """Returns a cluster of so many nodes of eight GPUs."""
    return ClusterFacts(
        device="cuda", slots=GPUS * nodes, node_slots=GPUS, memory_limit_bytes=LIMIT_BYTES
    )


def space_of(spec: SweepSpec, cluster: ClusterFacts) -> Space:
    """The legal plans."""
    model = describe(spec.model, spec.train)
    return build_space(RuleContext(spec=spec, model=model, cluster=cluster), GPUS)


@final
class StandingCluster(AbstractCluster):
    """A cluster whose nodes stay up and whose groups keep what they are given."""

    def __init__(self, count: int) -> None:
        self._nodes = tuple(Node(id=f"node-{at:05}", slots=GPUS) for at in range(count))
        self.groups: list[str] = []
        self.given: dict[str, Run] = {}

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def request_capacity(self, needs: Sequence[Shortfall]) -> None:
        assert not any(need.bundles for need in needs), "there is room for every group"

    def start_group(self, group: str) -> None:
        self.groups.append(group)

    def send(self, group: str, message: Run | Release | Dismiss) -> None:
        if isinstance(message, Run):
            self.given[group] = message

    def kill(self, group: str) -> None:
        raise AssertionError(f"{group} is overdue")


@final
class PlimsollFront(AbstractFront):
    """All of a sweep's driver but Ray: decisions, placement, search, study, events and metrics.

    What Ray Tune itself does with a result is measured apart and passed to `tune_seconds`.
    """

    def __init__(
        self, spec: SweepSpec, space: Space, nodes: int, clock: Clock, tune_seconds: float
    ) -> None:
        study = Study(spec, "naps", space)
        request = CapacityRequest(groups=nodes, ranks=GPUS)
        started = study.driver_started(cluster_of(nodes), (request,), nodes, clock())
        self.watch = Watch(clock)
        self._listeners = (EventFile(Path(spec.study.folder, "events.jsonl"), print), RayMetrics())
        self._cluster, self._clock, self._tune_seconds = StandingCluster(nodes), clock, tune_seconds
        self._controller = Controller(
            started,
            study,
            self._cluster,
            (*self._listeners, self.watch),
            Told(space.table),
            clock,
            self.watch.decided,
        )

    def ask(self, group: int) -> float | None:
        """The trial that the group has by now; each tick gives one more group its first."""
        run = self._run_of(group)
        if run is None:
            with self._clock:
                self._controller.tick()
            run = self._run_of(group)
        return None if run is None else nap_of(run.request.plan).seconds

    def tell(self, group: int, began: float, ended: float) -> None:
        """Reports, which gives the group its next trial at once: so does Ray Tune's result."""
        run = self._cluster.given.pop(self._cluster.groups[group])
        report = report_of(run, nap_of(run.request.plan).outcome, began, ended)
        with self._clock:
            self._controller.receive(report)
        self._clock.pass_by(self._tune_seconds)

    def _run_of(self, group: int) -> Run | None:
        names = self._cluster.groups
        return self._cluster.given.get(names[group]) if group < len(names) else None

    def close(self) -> None:
        """Ends what listens."""
        for listener in self._listeners:
            listener.close()


@final
class OptunaFront(AbstractFront):
    """Ray's `OptunaSearch` as a careful user takes it: TPE in memory, a plan that fails is worth 0.

    What Ray Tune itself does with a trial is not here; it is measured apart and passed to
    `tune_seconds`.
    """

    def __init__(self, spec: SweepSpec, space: Space, clock: Clock, tune_seconds: float) -> None:
        from ray import tune
        from ray.tune.search.optuna import OptunaSearch

        self._space, self._clock = space, clock
        self._left = spec.budget.trials
        self._tune_seconds = tune_seconds
        self._rates: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self.refused = 0
        self._search = OptunaSearch(
            {name: tune.choice(list(values)) for name, values in choices(space).items()},
            metric="rate",
            mode="max",
        )

    def ask(self, group: int) -> float | None:
        if not self._left:
            return None
        self._left -= 1
        name = self._names[group] = f"trial-{self._left}"
        with self._clock:
            config = self._search.suggest(name)
        self._clock.pass_by(self._tune_seconds)
        return self._nap(group, config)

    def tell(self, group: int, began: float, ended: float) -> None:
        with self._clock:
            self._search.on_trial_complete(self._names[group], {"rate": self._rates[group]})

    def _nap(self, group: int, config: Mapping[str, Any]) -> float:
        plan = plan_of(self._space, config)
        if plan is None:
            self.refused += 1
            self._rates[group] = WORTHLESS
            return REFUSED_SECONDS
        nap = nap_of(plan)
        measured = nap.outcome
        self._rates[group] = (
            measured.samples_per_second.value if isinstance(measured, Measured) else WORTHLESS
        )
        return nap.seconds


def real_clock(name: str) -> Clock:
    """A clock that runs with the wall's, or with this process's CPU."""
    return Clock({"wall": time.perf_counter, "cpu": time.process_time}[name])
