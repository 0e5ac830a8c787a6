"""One run of a step: its folder, size, worker and results."""

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from unittest.mock import patch

from benchmarks.gpu.results import Results
from benchmarks.gpu.worker import LoneWorker, Trial
from benchmarks.output import commit
from orchestrator.report.labels import outcome_words, plan_words
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, outcome_to_json

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that a step gets.

    Attributes:
        step: Name of the step.
        out: Folder of results.
        tiny: Train tiny models on a CPU.
        worker: Runs trials; its process starts with the first.
    """

    step: str
    out: Path
    tiny: bool
    worker: LoneWorker = field(default_factory=LoneWorker)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device of trials."""
        return "cpu" if self.tiny else "cuda"

    def has(self, item: str) -> bool:
        """Returns whether an earlier run has this item's result."""
        return Results(folder=self.out).has(self.step, item)

    def write(self, item: str, figures: Mapping[str, Any]) -> None:
        """Writes a result, with the commit whose code made it."""
        origin = {"at": time.time(), "commit": commit(), "tiny": self.tiny}
        Results(folder=self.out).add(self.step, item, origin | dict(figures))
        print(f"{self.step}: {item}: {figures.get('words', '')} {figures.get('rate', '')}")

    def trial(self, item: str, spec: SweepSpec, plan: Plan, **figures: Any) -> Outcome:
        """Runs a plan as a trial, and writes what it told beside other figures."""
        trial = self.worker.measure(spec, plan)
        self.write(item, figures_of(spec.model.name, plan, trial) | figures)
        return trial.outcome


def figures_of(model: str, plan: Plan, trial: Trial) -> dict[str, Any]:
    """All that a trial told; `rate` is samples per second, None if it measured nothing."""
    outcome = trial.outcome
    return {
        "model": model,
        "key": plan.key,
        "words": f"{plan_words(plan)}: {outcome_words(outcome)}",
        "rate": outcome.samples_per_second.value if isinstance(outcome, Measured) else None,
        "plan": plan.as_dict(),
        "outcome": outcome_to_json(outcome),
        "fingerprint": dataclasses.asdict(trial.fingerprint),
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }


def apart(
    call: Callable[..., T], *arguments: Any, environment: Mapping[str, str | None] | None = None
) -> T:
    """Calls a function in a process of its own, where variables are set, or unset by None."""
    changed = environment or {}
    others = {name: value for name, value in os.environ.items() if name not in changed}
    theirs = others | {name: value for name, value in changed.items() if value is not None}
    with (
        patch.dict(os.environ, theirs, clear=True),
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process,
    ):
        return process.submit(call, *arguments).result()
