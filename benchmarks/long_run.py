"""Growth of the processes of a sweep over thousands of trials on one group of workers.

    python -m benchmarks.long_run [--trials 2000] [--every 50] [--out FILE]

All trials are real ones of a small Llama, two ranks with DDP, a fraction of a second each. Every
so many trials, each process that a sweep has for its whole length is looked at: resident memory,
open file descriptors, threads. What is told is how much of each was added from a tenth of the way
on, when all that is made once has been made, until the end, and by how much per thousand trials.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.output import write
from orchestrator.core.events import Event, TrialEnded
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.sweep import run_sweep
from orchestrator.tracking.events import EventFile, events_file
from search_spaces.spec.schema import SweepSpec

NAME = "long"
MIB = 2**20
TITLES = (  # of Ray's processes, beside the driver
    *("ray::RayTrainWorker", "ray::TrainController", "ray::ResourceTrainable", "ray::GroupChannel"),
    *("ray::GroupQueues", "raylet", "gcs_server"),
)


def spec_for(folder: str, trials: int) -> SweepSpec:
    """Some thousand plans that all fit."""
    return SweepSpec.model_validate(
        {
            "model": {
                "name": "llama-3.2-1b",
                "config": {
                    "hidden_size": 64,
                    "intermediate_size": 128,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "head_dim": 16,
                    "vocab_size": 512,
                },
            },
            "cluster": {"device": "cpu", "workers": 2, "memory_gib": 1},
            "train": {"global_batch": 32, "sequence_length": 16, "precision": "fp32"},
            "space": {
                "zero_stage": [0],
                "micro_batch": [1, 2, 4, 8, 16],
                "checkpoint_ratio": [0.0, 0.5, 1.0],
                "optimizer": ["adamw_fused", "adamw_foreach"],
                "gradient_as_bucket_view": [False, True],
                "bucket_mib": list(range(1, 65)),
            },
            "objective": {"max_seconds": 0.05, "interval": 0.5},
            "validation": {"enabled": False},
            "budget": {"trials": trials, "minutes": 600},
            "study": {"folder": folder, "warm_start": False},
        }
    )


class Watch(AbstractCallback):
    """Looks at the processes every few trials, as asked."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.ended = 0
        self.kinds: dict[str, int] = defaultdict(int)
        self.samples: dict[str, list[tuple[int, float, int, int]]] = defaultdict(list)

    def on_event(self, event: Event, state: SweepState) -> None:
        """Counts a trial that ended."""
        if isinstance(event, TrialEnded):
            self.ended += 1
            self.kinds[event.record.outcome.kind] += 1
            if self.ended % self._every == 0:
                self._look()

    def close(self) -> None:
        """Nothing is left to do."""

    def _look(self) -> None:
        driver = psutil.Process(os.getpid())
        self._add("driver", driver)
        for process in driver.children(recursive=True):
            title = " ".join(process.cmdline()) or process.name()
            name = next((one for one in TITLES if one in title), None)
            if name is not None:
                self._add(f"{name.removeprefix('ray::')} {process.pid}", process)

    def _add(self, name: str, process: psutil.Process) -> None:
        held = process.memory_info().rss / MIB
        self.samples[name].append((self.ended, held, process.num_fds(), process.num_threads()))


def growth(samples: Sequence[tuple[int, float, int, int]], trials: int) -> Mapping[str, Any]:
    """Returns what a process added, from a tenth of the way on."""
    late = [one for one in samples if one[0] >= trials / 10]
    at, held, handles, threads = (np.array(column, float) for column in zip(*late, strict=True))
    slope = np.polyfit(at, held, 1)[0] if len(at) > 1 else 0.0
    return {
        "from_trial": int(at[0]),
        "to_trial": int(at[-1]),
        "mib_at_first": round(held[0], 1),
        "mib_at_last": round(held[-1], 1),
        "mib_per_thousand_trials": round(1000 * slope, 2),
        "handles_at_first": int(handles[0]),
        "handles_at_last": int(handles[-1]),
        "threads_at_first": int(threads[0]),
        "threads_at_last": int(threads[-1]),
    }


def measure(trials: int, every: int) -> dict[str, Any]:
    """The figures of one sweep."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        spec = spec_for(folder, trials)
        watch = Watch(every)
        run_sweep(spec, NAME, (watch, EventFile(events_file(spec, NAME), print)))
        processes = {
            name: growth(samples, trials)
            for name, samples in sorted(watch.samples.items())
            if samples[-1][0] > trials / 10
        }
    return {"trials": watch.ended, "outcomes": dict(watch.kinds), "processes": processes}


def main() -> None:
    """Prints what was added, and writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = measure(given.trials, given.every)
    print(f"{found['trials']} trials: {found['outcomes']}")
    for name, one in found["processes"].items():
        print(
            f"{name:<28} {one['mib_at_first']:>7.1f} MiB at trial {one['from_trial']},"
            f" {one['mib_at_last']:>7.1f} at {one['to_trial']};"
            f" {one['mib_per_thousand_trials']:>6.2f} MiB per 1,000 trials;"
            f" handles {one['handles_at_first']} to {one['handles_at_last']},"
            f" threads {one['threads_at_first']} to {one['threads_at_last']}"
        )
    write(found, given.out)


if __name__ == "__main__":
    main()
