"""Share of the time in which a sweep keeps 64 groups of workers busy under Ray.

    python -m benchmarks.search_under_ray [--trials N] [--groups N] [--out FILE]

Everything is real but the trials: a Ray cluster with as many logical CPUs as there are groups, Ray
Tune, the driver, a study in SQLite, the search. In place of workers that train, a trial sleeps
as long as its forecast says and reports what the forecast says. Busy is the share of the groups'
time in which a trial slept, from when all groups had one until the last trial was handed out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.naps import BATCH, LIMIT_BYTES, Told, Watch, sleeper
from benchmarks.output import write
from orchestrator.cluster.runtime import configure_ray
from orchestrator.controller import Controller, steady_clock
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.placement import CapacityRequest
from orchestrator.study.study import Study
from search_spaces.facts import ClusterFacts
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from workers.models.load import describe


def busy_share(slept: Sequence[TrialFinished], handed: Sequence[float]) -> float:
    """The share of the groups' time in which a trial slept, between the two moments."""
    first, last = all_up(slept), max(handed)
    within = sum(max(min(nap.ended_at, last) - max(nap.started_at, first), 0.0) for nap in slept)
    return within / len({nap.group for nap in slept}) / (last - first)


def all_up(slept: Sequence[TrialFinished]) -> float:
    """Returns when the last group had its first trial."""
    begun: dict[str, float] = {}
    for nap in slept:
        begun[nap.group] = min(nap.started_at, begun.get(nap.group, nap.started_at))
    return max(begun.values())


def spec_for(folder: str, groups: int, trials: int) -> SweepSpec:
    """Some thousand plans on one rank each."""
    return SweepSpec.model_validate(
        {
            "model": "gpt2",
            "cluster": {"device": "cpu", "workers": 1, "groups": groups, "share_nodes": True},
            "train": {"global_batch": BATCH, "sequence_length": 1024},
            "space": {
                "micro_batch": [1, 2, 4, 8, 16, 32, 64, 128],
                "checkpoint_ratio": [part / 12 for part in range(13)],
                "checkpoint_mode": ["full", "selective"],
                "attention": ["sdpa", "eager"],
                "optimizer": ["adamw_fused", "adamw_foreach"],
                "loader_workers": [0, 1, 2, 4],
            },
            "budget": {"trials": trials},
            "validation": {"enabled": False},
            "study": {"folder": folder, "warm_start": False},
        }
    )


def sweep(groups: int, trials: int) -> dict[str, Any]:
    """The figures of one sweep."""
    configure_ray()
    import ray

    from orchestrator.cluster.loop import TuneCluster, run_groups
    from orchestrator.cluster.nodes import RayNodes

    with tempfile.TemporaryDirectory() as folder:
        spec = spec_for(folder, groups, trials)
        facts = ClusterFacts(device="cpu", slots=groups, memory_limit_bytes=LIMIT_BYTES)
        space = _space(spec, facts)
        study = Study(spec, "naps", space)
        clock = steady_clock()
        watch = Watch(clock)
        request = CapacityRequest(groups=groups, ranks=1, share=True)
        started = study.driver_started(facts, (request,), groups, clock())
        ray.init(
            num_cpus=groups,
            include_dashboard=False,
            object_store_memory=2**28,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            cluster = TuneCluster(RayNodes("cpu", 1, joined=False))
            controller = Controller(
                started, study, cluster, (watch,), Told(space.table), clock, watch.decided
            )
            run_groups(controller, cluster, groups, sleeper())
        finally:
            ray.shutdown()
        plans = [record.plan for record in study.records()]
    return {
        "groups": groups,
        "trials": len(plans),
        "plans_tried_twice": len(plans) - len(set(plans)),
        "candidates": len(space.table),
        "groups_seen": len({nap.group for nap in watch.slept}),
        "seconds_until_all_are_up": round(all_up(watch.slept) - min(watch.handed), 1),
        "trial_seconds_mean": round(
            float(np.mean([nap.ended_at - nap.started_at for nap in watch.slept])), 1
        ),
        "ask_ms_median": _median_ms(watch.asks),
        "end_to_driver_ms_median": _median_ms(watch.waits),
        "driver_to_begin_ms_median": _median_ms(watch.begins),
        "busy_share": round(busy_share(watch.slept, watch.handed), 3),
    }


def _median_ms(seconds: Sequence[float]) -> float:
    return round(1000 * float(np.median(seconds)), 1)


def _space(spec: SweepSpec, cluster: ClusterFacts) -> Space:
    model = describe(spec.model, spec.train)
    return build_space(RuleContext(spec=spec, model=model, cluster=cluster), 1)


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    found = sweep(given.groups, given.trials)
    for name, value in found.items():
        print(name, value)
    write(found, given.out)


if __name__ == "__main__":
    main()
