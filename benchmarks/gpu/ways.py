"""The ways to find a fast plan that are compared, each told by when its trials ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.end_to_end import GRACE_SECONDS, NAME, Ending, plain, tuned
from benchmarks.gpu import plain_tpe, tuned_alone
from benchmarks.gpu.ceilings import config_home
from benchmarks.gpu.command import Asked
from benchmarks.gpu.environment import variables
from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.presets.catalogue import preset_config
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured

OURS, TRAINER, OPTUNA = "plimsoll tune", "Trainer, auto_find_batch_size", "Optuna TPE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The trials of a way; `best` has a plan's knobs and its tokens per second, if it has plans."""

    endings: tuple[Ending, ...]
    how: str
    best: Mapping[str, Any] | None = None


def ours(asked: Asked, spec: SweepSpec, minutes: float) -> Searched:
    """`plimsoll tune` with its defaults, under Ray where that is there, without its validation."""
    with TemporaryDirectory(prefix="plimsoll-gpu-") as folder, config_home(asked) as home:
        study = spec.study.model_copy(update={"folder": folder, "name": NAME})
        mine = spec.model_copy(update={"study": study})
        if not asked.ray:
            budget = mine.budget.model_copy(update={"minutes": minutes})
            began = time.time()
            with variables(home):
                records = tuned_alone.tune(
                    asked.group, mine.model_copy(update={"budget": budget}), NAME
                )
            endings, how = endings_of(records, began), "its driver, without Ray"
        else:
            asked.free_device()
            file = Path(folder, f"{NAME}.yaml")
            file.write_text(spec_to_yaml(mine), "utf-8")
            with variables(home):
                endings, how = tuned(file, mine, minutes), "under Ray"
            records = load_records(mine, NAME) if endings else ()
        return Searched(endings=endings, how=how, best=best_of(records))


def endings_of(records: Sequence[Record], began: float) -> tuple[Ending, ...]:
    """Returns the ends of trials, in seconds since `began`; rate 0 if nothing was measured."""
    return tuple(
        Ending(
            seconds=record.ended_at - began,
            rate=(
                record.outcome.samples_per_second.value
                if isinstance(record.outcome, Measured)
                else 0.0
            ),
            kind=record.outcome.kind,
        )
        for record in records
    )


def best_of(records: Sequence[Record]) -> dict[str, Any] | None:
    """The fastest plan that was measured."""
    measured = [(r.plan, r.outcome) for r in records if isinstance(r.outcome, Measured)]
    if not measured:
        return None
    plan, outcome = max(measured, key=lambda one: one[1].samples_per_second.value)
    return {"plan": plan.as_dict(), "tokens_per_second": outcome.tokens_per_second}


def optuna(asked: Asked, spec: SweepSpec, minutes: float) -> Searched:
    """Plain Ray Tune with OptunaSearch where Ray is there, else Optuna's TPE on our worker."""
    if not asked.ray:
        endings = plain_tpe.search(asked.group, spec, minutes)
        return Searched(endings=endings, how="TPE on a warm worker, without Ray")
    asked.free_device()
    with TemporaryDirectory(prefix="plimsoll-gpu-") as folder:
        study = spec.study.model_copy(update={"folder": folder})
        mine = spec.model_copy(update={"study": study})
        file = Path(folder, "plain.yaml")
        file.write_text(spec_to_yaml(mine), "utf-8")
        return Searched(endings=plain(file, mine, minutes), how="Ray Tune with OptunaSearch")


def trainer(asked: Asked, spec: SweepSpec, minutes: float) -> Searched:
    """Hugging Face's Trainer with its defaults, in a process of its own."""
    asked.free_device()
    with TemporaryDirectory(prefix="plimsoll-gpu-") as folder:
        job, out = Path(folder, "job.json"), Path(folder, "out.jsonl")
        job.write_text(json.dumps(job_of(spec, asked)), "utf-8")
        began = time.time()
        command = [sys.executable, "-m", "benchmarks.gpu.trainer_defaults", str(job), str(out)]
        with subprocess.Popen(command, stdout=sys.stderr) as running:
            try:
                running.wait(60 * minutes + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                running.terminate()
        lines = out.read_text("utf-8").splitlines() if out.is_file() else []
    return Searched(endings=trainers_endings(lines, began), how="transformers' Trainer")


def job_of(spec: SweepSpec, asked: Asked) -> dict[str, Any]:
    """Returns the job of the Trainer: the same model, tokens and precision."""
    config = preset_config(spec.model.name) | spec.model.config
    config.pop("architectures")
    return {
        "config": config,
        "task": spec.model.task,
        "sequence_length": spec.train.sequence_length,
        "global_batch": spec.train.global_batch,
        "bf16": spec.train.precision == "bf16",
        "cpu": asked.tiny,
        "steps": 2 if asked.tiny else 20,
        "seconds": 1.0 if asked.tiny else 60.0,
    }


def trainers_endings(lines: Sequence[str], began: float) -> tuple[Ending, ...]:
    """Returns the ends of the Trainer's trials, from the lines that it wrote."""
    return tuple(
        Ending(seconds=told["at"] - began, rate=told["rate"], kind=told["kind"])
        for told in map(json.loads, lines)
    )


Way = Callable[[Asked, SweepSpec, float], Searched]
WAYS: Mapping[str, Way] = {OURS: ours, TRAINER: trainer, OPTUNA: optuna}
