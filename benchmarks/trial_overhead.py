"""Overhead of a trial beyond its work: on a warm group, and started cold, in one run.

    python -m benchmarks.trial_overhead [--trials 20] [--cold 3] [--out FILE]

A trial's overhead is the time from the end of the trial before to its own end, when its result is
in the study, less the model build and all optimizer steps. Warm trials are those of a sweep after
its first. Cold trials are the same plans as one `TorchTrainer.fit()` each, which is what plain Ray
Tune with Ray Train does; their overhead is the time of the call, less the same. Seconds depend on
the machine, so the ratio is what counts.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.output import command_line, write
from orchestrator.core.events import Event, SweepStarted, TrialEnded
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.sweep import run_sweep
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, TrialRequest, outcome_from_json, outcome_to_json

RANKS = 2


def spec_for(folder: str, trials: int) -> SweepSpec:
    """A small model whose steps take milliseconds, so that overhead is what is seen."""
    return SweepSpec.model_validate(
        {
            "model": {
                "name": "llama-3.2-1b",
                "config": {
                    "hidden_size": 64,
                    "intermediate_size": 128,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "num_key_value_heads": 2,
                    "head_dim": 32,
                    "vocab_size": 512,
                },
            },
            "cluster": {"device": "cpu", "workers": RANKS, "memory_gib": 1},
            "train": {"global_batch": 32, "sequence_length": 64, "precision": "fp32"},
            "objective": {"max_seconds": 1.0, "interval": 0.1},
            "budget": {"trials": trials},
            "validation": {"enabled": False},  # it runs in workers of its own
            "study": {"folder": folder, "name": "overhead"},
        }
    )


class Stopwatch(AbstractCallback):
    """Seconds from the end of one trial to that of the next, with its outcome, by plan."""

    def __init__(self) -> None:
        self.trials: list[tuple[Plan, float, Outcome]] = []
        self._since = 0.0

    def on_event(self, event: Event, state: SweepState) -> None:
        """Notes when a trial ended."""
        match event:
            case SweepStarted():
                self._since = event.at
            case TrialEnded(record=record):
                self.trials.append((record.plan, event.at - self._since, record.outcome))
                self._since = event.at

    def close(self) -> None:
        """Nothing is left to do."""


def cold_trial(config: dict[str, Any]) -> str:
    """One trial in workers that were started for it."""
    from ray.train import get_context

    from workers.entry import run_trial
    from workers.worker import Worker

    worker = Worker.start(config["spec"])
    request = TrialRequest(number=0, plan=config["plan"], spec=config["spec"])
    outcome = run_trial(request, worker)
    if get_context().get_world_rank() == 0:
        Path(config["out"]).write_text(json.dumps(outcome_to_json(outcome)))
    return outcome.kind


def run_cold(
    spec: SweepSpec, plan: Plan, folder: str, environment: Mapping[str, Any] | None = None
) -> tuple[float, Outcome]:
    """Seconds and outcome of one plan as one `TorchTrainer.fit()`, in this environment."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    out = Path(folder, f"cold-{plan.key}.json")
    cuda = spec.cluster.device == "cuda"
    started = time.perf_counter()
    TorchTrainer(
        cold_trial,
        train_loop_config={"spec": spec, "plan": plan, "out": str(out)},
        torch_config=TorchConfig(backend="nccl" if cuda else "gloo"),
        scaling_config=ScalingConfig(num_workers=plan.world_size, use_gpu=cuda),
        run_config=RunConfig(
            name=f"cold-{plan.key}", storage_path=folder, worker_runtime_env=environment
        ),
    ).fit()
    seconds = time.perf_counter() - started
    return seconds, outcome_from_json(json.loads(out.read_text()))


def summary(label: str, trials: Iterable[tuple[float, Outcome]]) -> dict[str, Any]:
    """Figures of one way of running trials, by the seconds and outcomes of those that measured."""
    seconds = [
        whole - outcome.costs.build_seconds - outcome.costs.steps_seconds
        for whole, outcome in trials
        if isinstance(outcome, Measured)
    ]
    return {
        "way": label,
        "trials": len(seconds),
        "median_seconds": round(statistics.median(seconds), 4),
        "max_seconds": round(max(seconds), 4),
    }


def measure(trials: int, cold: int, spec: SweepSpec | None = None) -> dict[str, Any]:
    """Runs both ways and compares them.

    Args:
        trials: On a warm group, the first of which does not count.
        cold: Trials that are started cold.
        spec: Another model and machine than `spec_for` has, whose study, budget and validation it
            gets.
    """
    import ray

    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        small = spec_for(folder, trials)
        kept = {"study": small.study, "budget": small.budget, "validation": small.validation}
        spec = small if spec is None else spec.model_copy(update=kept)
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        watch = Stopwatch()
        run_sweep(spec, "overhead", (watch,))
        warm = [(seconds, outcome) for _, seconds, outcome in watch.trials[1:]]
        plans = [plan for plan, _, outcome in watch.trials if isinstance(outcome, Measured)]
        apart = [run_cold(spec, plan, folder) for plan in plans[:cold]]
        ray.shutdown()
    results = [summary("warm group", warm), summary("cold TorchTrainer.fit()", apart)]
    return {
        "ways": results,
        "cold_over_warm": round(results[1]["median_seconds"] / results[0]["median_seconds"], 1),
    }


def main() -> None:
    """Prints the comparison as a table, and as JSON where asked."""
    parser = command_line(__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--cold", type=int, default=3)
    options = parser.parse_args()
    result = measure(options.trials, options.cold)
    for way in result["ways"]:
        print(
            f"{way['way']:<26} {way['trials']:>3} trials   overhead: median"
            f" {way['median_seconds'] * 1000:>9.1f} ms, max {way['max_seconds'] * 1000:>9.1f} ms"
        )
    print(f"cold over warm: {result['cold_over_warm']} x")
    write(result, options.out)


if __name__ == "__main__":
    main()
