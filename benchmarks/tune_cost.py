"""What Ray Tune itself takes of its driver for each trial, under a real Ray on this machine.

Trials sleep for no time; each has an actor (kept and reset for the next, where Ray Tune is used
plainly). What the searcher takes is not counted: it is simulated at scale elsewhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from orchestrator.core.messages import Assignment, Later, TrialReport
from orchestrator.core.notes import Note
from search_spaces.trial import Stopped

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
    from orchestrator.cluster.loop import GroupRunner, run_trials
    from orchestrator.core.messages import AbstractDriver
    from search_spaces.trial import Cancelled

    class Nothing(GroupRunner):
        def run(self, given: Assignment) -> TrialReport:
            now = time.time()
            return TrialReport(
                number=given.request.number,
                outcome=Cancelled(cause=Stopped(by="the benchmark")),
                fingerprint=None,
                notes=(),
                started_at=now,
                ended_at=now,
            )

    class Driver(AbstractDriver):
        def __init__(self) -> None:
            self.left = trials

        def propose(self, idle: Any = ()) -> Assignment | Later | None:
            if not self.left:
                return None
            self.left -= 1
            return Assignment(
                request=_request(self.left), device="cpu", deadline_seconds=0, folder=""
            )

        def conclude(self, report: TrialReport) -> None:
            """Nothing to keep."""

        def lose(self, number: int, notes: Sequence[Note] = ()) -> None:
            raise AssertionError(f"the runner of trial {number} died")

    began = time.process_time()
    run_trials(Driver(), _AT_ONCE, Nothing)
    return (time.process_time() - began) / trials


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
