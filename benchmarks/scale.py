"""Load of one driver on a cluster of thousands of GPUs, compared with plain Ray Tune.

    python -m benchmarks.scale [--nodes N] [--trials N] [--clock cpu] [--out FILE]

Real: the driver, whole (decisions, placement, search, study in SQLite, events, metrics), with as
many groups as there are nodes of 8 GPUs, and Ray's OptunaSearch (TPE, its default) on the same
plans; what each ask and tell takes. Simulated: nodes, workers and time; a trial takes the seconds
that its forecast says, and the clock moves on by them and by what the driver takes. Measured
apart, under a real Ray on this machine with four actors, and added for each trial: what Ray Tune
itself takes of its driver. Left out, in favour of plain Ray Tune: its cold start of workers for
each trial.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import write
from benchmarks.scale_fronts import (
    GPUS,
    OptunaFront,
    PlimsollFront,
    cluster_of,
    real_clock,
    space_of,
    spec_for,
)
from benchmarks.tune_cost import local_ray, plain_seconds, plimsoll_seconds
from benchmarks.virtual import Clock, Tally, simulate
from orchestrator.cluster.runtime import configure_ray


def ours(nodes: int, trials: int, clock: Clock, tune_seconds: float) -> dict[str, Any]:
    """The figures of Plimsoll's driver."""
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_for(folder, nodes, trials)
        space = space_of(spec, cluster_of(nodes))
        front, before = PlimsollFront(spec, space, nodes, clock, tune_seconds), _resident_mib()
        tally = simulate(front, nodes, clock)
        front.close()
        found = _figures(tally, clock, tune_seconds)
        return {
            **found,
            "candidates": len(space.table),
            "ask_ms_median": _median_ms(front.watch.asks),
            "ask_ms_of_the_last_hundred": _median_ms(front.watch.asks[-100:]),
            "memory_mib_before_and_at_most": (before, _resident_mib()),
        }


def plain(nodes: int, trials: int, clock: Clock, tune_seconds: float) -> dict[str, Any]:
    """The figures of OptunaSearch, and of Ray Tune around it."""
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_for(folder, nodes, trials)
        space = space_of(spec, cluster_of(nodes))
        front = OptunaFront(spec, space, clock, tune_seconds)
        tally = simulate(front, nodes, clock)
        found = _figures(tally, clock, tune_seconds)
        return {**found, "asked_for_plans_that_no_rule_allows": front.refused}


def _figures(tally: Tally, clock: Clock, tune_seconds: float) -> dict[str, Any]:
    trials = len(tally.ran)
    each = clock.ran_seconds / trials + tune_seconds
    return {
        "trials": trials,
        "trial_seconds_mean": round(tally.trial_seconds, 1),
        "busy_share": round(tally.busy_share, 3),
        "driver_ms_each_trial": round(1000 * each, 1),
        "of_that_ray_tune_ms": round(1000 * tune_seconds, 1),
        "asks_and_tells_per_second": round(1 / each, 1),
        "groups_kept_busy": round(tally.trial_seconds / each),
    }


def _resident_mib() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _median_ms(seconds: list[float]) -> float:
    return round(1000 * float(np.median(seconds)), 1)


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--ray-trials", type=int, default=200)
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a machine that others use"
    )
    parser.add_argument("--profile", action="store_true", help="Plimsoll's driver alone, profiled")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    configure_ray()
    if given.profile:
        profile = cProfile.Profile()
        clock = real_clock(given.clock)
        print(profile.runcall(ours, given.nodes, given.trials, clock, 0.0))
        pstats.Stats(profile).sort_stats("cumtime").print_stats(70)
        return
    with local_ray():
        tune_costs = plimsoll_seconds(given.ray_trials), plain_seconds(given.ray_trials)
    found: dict[str, Any] = {
        "nodes": given.nodes,
        "gpus": GPUS * given.nodes,
        "clock": given.clock,
        "trials_under_real_ray": given.ray_trials,
    }
    both = {"plimsoll": (ours, tune_costs[0]), "plain_ray_tune": (plain, tune_costs[1])}
    for name, (run, cost) in both.items():
        found[name] = run(given.nodes, given.trials, real_clock(given.clock), cost)
        lines = (f"{key}: {value}" for key, value in found[name].items())
        print(name, *lines, sep="\n  ", flush=True)
    write(found, given.out)


if __name__ == "__main__":
    main()
