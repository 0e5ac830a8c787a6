"""Sweeps over the same space for the same time, and what a trial costs beside its work."""

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import trial_overhead
from benchmarks.end_to_end import lines_of, run_sweep, trials_of
from benchmarks.gpu.cases import LLAMA_1B, searched
from benchmarks.gpu.run import Run
from search_spaces.specification.load import spec_to_yaml
from search_spaces.specification.schema import SweepSpec

MINUTES = 3.0
_WARM, _COLD = 4, 1  # trials
_FEW = {  # plans that fit any GPU
    **{"engine": ["torch"], "micro_batch": [1, 2], "checkpoint_ratio": [0.0, 1.0]},
    **{"attention": ["sdpa"], "optimizer": ["adamw_fused"], "compile": [False]},
}
_SWEPT = ("micro_batch", "checkpoint_ratio", "checkpoint_mode", "attention", "compile")
Trials = list[dict[str, Any]]


def tune(run: Run) -> None:
    """Runs `plimsoll tune`."""
    _sweep(run, ["plimsoll", "tune", "--plain"], trials_of)


def plain(run: Run) -> None:
    """Runs Ray Tune with OptunaSearch, each trial of which is a `TorchTrainer` of its own."""
    out = (run.out / "plain_ray_tune.jsonl").absolute()
    out.unlink(missing_ok=True)
    _sweep(run, ["benchmarks.plain_ray_tune", "--out", str(out)], lambda _: lines_of(out))


def overhead(run: Run) -> None:
    """Measures what a trial costs beside its work: warm, and each as a `TorchTrainer`."""
    spec = LLAMA_1B.spec(tiny=run.tiny, space=_FEW, memory_gib=1.0)
    run.write("overhead", trial_overhead.measure(_WARM, _COLD, spec=spec))


def _sweep(run: Run, module: list[str], trials: Callable[[SweepSpec], Trials]) -> None:
    """Runs a program over lossless knobs, and writes its trials, also if it is cut short."""
    every = searched(tiny=run.tiny)
    sections: dict[str, Any] = {
        "space": {name: every[name] for name in _SWEPT if name in every}
        | {"engine": ["torch"], "optimizer": ["adamw_fused", "adamw_foreach"]},
        "budget": {"trials": 10_000, "trial_seconds": 90.0},
        "study": {"folder": str(run.out.absolute()), "name": run.step, "warm_start": False},
        "validation": {"repeats": 2, "tries": 1},
        "tracking": {"enabled": False},
    }
    spec = LLAMA_1B.spec(tiny=run.tiny, memory_gib=1.0, **sections)
    file = run.out / f"{run.step}.yaml"
    file.write_text(spec_to_yaml(spec), "utf-8")
    started, way = time.time(), {"way": run.step, "rate": None}
    command = [sys.executable, "-m", *module, str(file), "--minutes", f"{MINUTES:g}"]
    try:
        run_sweep(command, MINUTES)
    finally:
        for number, told in enumerate(trials(spec)):
            run.write(f"trial {number}", way | told | {"seconds": told["at"] - started})
        run.write("sweep", way | {"rate": None, "started": started})
