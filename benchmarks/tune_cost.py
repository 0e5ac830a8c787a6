"""Cost of Ray Tune itself in its driver for each trial, under a real Ray on this machine.

Trials sleep for no time; each has an actor (kept and reset for the next, where Ray Tune is used
plainly). What the searcher takes is not counted: it is simulated at scale elsewhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from benchmarks.naps import report_of
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.controller_state import Phase
from orchestrator.core.inputs import GroupsEnded, Input, TrialFinished
from orchestrator.core.instructions import Dismiss, Run
from search_spaces.trial import Cancelled, Stopped

_AT_ONCE = 4
_SHARE = {"node:__internal_head__": 0.001}


@contextmanager
def local_ray() -> Iterator[None]:
    """A small Ray on this machine."""
    import ray

    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=_AT_ONCE, include_dashboard=False, object_store_memory=10**8, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def plain_seconds(trials: int) -> float:
    """CPU seconds of the driver's process for each trial of plain Ray Tune."""
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    class Nothing(tune.Trainable):  # type: ignore[misc]  # Ray is untyped
        def setup(self, config: dict[str, Any]) -> None:
            self._x = config["x"]

        def reset_config(self, config: dict[str, Any]) -> bool:
            self.setup(config)
            return True

        def step(self) -> dict[str, Any]:
            return {"rate": self._x, "done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Nothing to keep."""

    within = [0.0]  # CPU seconds in the searcher

    class Counted(OptunaSearch):  # type: ignore[misc]  # Ray is untyped
        def suggest(self, trial_id: str) -> Any:
            return _counted(within, super().suggest, trial_id)

        def on_trial_complete(self, *given: Any, **named: Any) -> None:
            _counted(within, super().on_trial_complete, *given, **named)

    search = Counted({"x": tune.uniform(0, 1)}, metric="rate", mode="max")
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(Nothing, _SHARE),
            tune_config=tune.TuneConfig(
                search_alg=search,
                num_samples=trials,
                max_concurrent_trials=_AT_ONCE,
                reuse_actors=True,
                metric="rate",
                mode="max",
            ),
            run_config=tune.RunConfig(storage_path=folder, name="plain", verbose=0),
        )
        began = time.process_time()
        tuner.fit()
        return (time.process_time() - began - within[0]) / trials


def _counted(within: list[float], call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    began = time.process_time()
    try:
        return call(*given, **named)
    finally:
        within[0] += time.process_time() - began


def plimsoll_seconds(trials: int) -> float:
    """The same where a Tune trial is the life of a group, and each plan one more result."""
    from orchestrator.cluster.loop import GroupRunner, TuneCluster, run_groups
    from orchestrator.cluster.nodes import RayNodes
    from orchestrator.cluster.worker_group import WarmGroup

    class Nothing(WarmGroup):
        def run(self, run: Run) -> TrialFinished:
            now = time.time()
            return report_of(run, Cancelled(cause=Stopped(by="the benchmark")), now, now)

    class Runner(GroupRunner):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config)
            self._group = Nothing()

    began = time.process_time()
    cluster = TuneCluster(RayNodes("cpu", 1, joined=False))
    handing: Any = _Handing(cluster, trials)
    run_groups(handing, cluster, _AT_ONCE, Runner)
    return (time.process_time() - began) / trials


class _Handing:
    """Stands where a controller decides, and hands out trials without a study or a search."""

    def __init__(self, cluster: AbstractCluster, trials: int) -> None:
        self.state = SimpleNamespace(phase=Phase.SEARCHING, groups={})
        self._cluster, self._left = cluster, trials

    def tick(self) -> None:
        """Starts all groups, once."""
        for number in range(_AT_ONCE - len(self.state.groups)):
            group = f"group-{number}"
            self.state.groups[group] = None
            self._cluster.start_group(group)
            self._hand(group)

    def receive(self, given: Input) -> None:
        """Hands the group that reports its next trial."""
        match given:
            case TrialFinished(group=group):
                self._hand(group)
            case GroupsEnded(groups=groups):
                assert self.state.phase is Phase.DONE, f"the runner of {groups} died"

    def _hand(self, group: str) -> None:
        if self._left:
            self._left -= 1
            request = _request(self._left)
            run = Run(group=group, request=request, device="cpu", folder="", deadline_seconds=0)
            self._cluster.send(group, run)
        else:
            self.state.phase = Phase.DONE
            self._cluster.send(group, Dismiss(group=group))


def _request(number: int) -> Any:
    from search_spaces.plan import Plan
    from search_spaces.spec.schema import SweepSpec
    from search_spaces.trial import TrialRequest

    spec = SweepSpec.model_validate({"model": "gpt2", "train": {"global_batch": 8}})
    plan = Plan(
        zero_stage=0,
        micro_batch=1,
        accumulation=8,
        checkpoint_ratio=0.0,
        attention="sdpa",
        precision="fp32",
        batching="packed",
        data=1,
    )
    return TrialRequest(number=number, plan=plan, spec=spec)
