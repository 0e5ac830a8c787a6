"""A sweep as a careful user writes it with Ray Tune, Optuna and Ray Train alone.

    python -m benchmarks.plain_ray_tune SPEC --minutes M --out FILE

Each trial is a `TorchTrainer.fit()` of its own, proposed by Ray's `OptunaSearch` over every knob
that the specification's space varies. What no rule allows is answered at once with a throughput of
0, and so is a plan that ran out of memory: `OptunaSearch` cannot carry constraints. The trial
itself is the one that Plimsoll runs, so that both measure the same. Each one's ending is a line in
FILE.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.space import FOLLOWS, space_of
from benchmarks.trial_overhead import run_cold
from search_spaces.plan import Plan
from search_spaces.space import Space
from search_spaces.specification.load import load_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import outcome_to_json

WORTHLESS = 0.0  # samples per second of what did not run
_WAITING = 1  # slots of a trial's driver, which only waits for its workers: beyond those there are
LEAN = {"env_vars": {"MALLOC_ARENA_MAX": "1", "RAY_worker_niceness": "0"}}


def choices(space: Space) -> dict[str, tuple[Any, ...]]:
    """The knobs that vary, with their values."""
    return {name: values for name, values in space.domains if len(values) > 1 and name != FOLLOWS}


def plan_of(space: Space, config: Mapping[str, Any]) -> Plan | None:
    """The legal plan with these values; None if there is none."""
    rows = space.table
    for name, value in config.items():
        rows = rows.take(rows.is_value(name, value))
    return rows.plan(0) if len(rows) else None


def sweep(spec: SweepSpec, minutes: float, out: Path) -> None:
    """Runs trials until the time is over; the last may end later."""
    import ray
    from ray import tune
    from ray.train import TrainingFailedError
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    space, folder = space_of(spec), tempfile.mkdtemp(prefix="plain-sweep-")

    def trial(config: dict[str, Any]) -> None:
        os.environ["RAY_TRAIN_ENABLE_STATE_TRACKING"] = "0"
        plan = plan_of(space, config)
        told: dict[str, Any] = {"kind": "refused", "rate": WORTHLESS}
        if plan is not None:
            try:
                _, outcome = run_cold(spec, plan, folder, LEAN)
                rate = getattr(outcome, "samples_per_second", None)
                told = {"kind": outcome.kind, "rate": rate.value if rate else WORTHLESS}
                told["outcome"] = outcome_to_json(outcome)
            except TrainingFailedError as error:
                told = {"kind": f"failed: {type(error).__name__}", "rate": WORTHLESS}
        _note(out, told, plan)
        tune.report({"rate": told["rate"]})

    workers = space.table.plan(0).world_size * spec.cluster.cpus_per_worker
    ray.init(
        num_cpus=workers + _WAITING,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    search = ConcurrencyLimiter(OptunaSearch(metric="rate", mode="max"), max_concurrent=1)
    tune.Tuner(
        tune.with_resources(trial, {"CPU": _WAITING}),
        param_space={name: tune.choice(list(values)) for name, values in choices(space).items()},
        tune_config=tune.TuneConfig(
            metric="rate",
            mode="max",
            search_alg=search,
            num_samples=-1,
            time_budget_s=60 * minutes,
        ),
        run_config=tune.RunConfig(name="plain", storage_path=folder, verbose=0),
    ).fit()
    ray.shutdown()


def _note(out: Path, told: Mapping[str, Any], plan: Plan | None) -> None:
    knobs = None if plan is None else plan.as_dict()
    line = json.dumps({"at": time.time(), **told, "plan": knobs})
    with out.open("a", encoding="utf-8") as opened:
        opened.write(line + "\n")


def main() -> None:
    """Runs the sweep of a specification."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    # trials run in a folder of Ray Tune's
    sweep(load_spec(options.spec), options.minutes, options.out.absolute())


if __name__ == "__main__":
    main()
