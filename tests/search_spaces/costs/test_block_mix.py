"""Mixes of recomputation: against trying all of them, and on recorded measurements."""

import csv
import itertools
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from search_spaces.costs.block_mix import WAYS, fastest_mix, mix_knobs
from tests.plans import ddp_plan

SURFACES = Path(__file__).parents[3] / "benchmarks" / "surfaces"
BLOCKS = 6


def mixes(blocks: int) -> list[tuple[int, ...]]:
    counts = itertools.product(range(blocks + 1), repeat=len(WAYS))
    return [each for each in counts if sum(each) == blocks]


@pytest.mark.parametrize("seed", range(20))
def test_no_mix_that_fits_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seconds = 1 + rng.random(len(WAYS))
    held = 1e9 * rng.random((3, len(WAYS)))
    limit = 1e9 * rng.uniform(0.2, 0.8)
    allowed = rng.random(len(WAYS)) < 0.8
    fitting = [
        each
        for each in mixes(BLOCKS)
        if (held @ each / BLOCKS <= limit).all() and not np.array(each)[~allowed].any()
    ]

    found = fastest_mix(seconds, held, limit, BLOCKS, allowed)

    if not fitting:
        assert found is None
        return
    assert found in fitting
    assert seconds @ found == pytest.approx(min(seconds @ each for each in fitting))


@pytest.mark.parametrize("counts", mixes(3))
def test_knobs_say_the_mix(counts: tuple[int, ...]) -> None:
    plan = ddp_plan(**mix_knobs(counts))
    recomputed = round(plan.checkpoint_ratio * 3)
    selective = recomputed if plan.checkpoint_mode == "selective" else plan.selective_blocks
    offloaded = recomputed if plan.checkpoint_offload else plan.offloaded_blocks

    said = (3 - recomputed, selective, recomputed - selective - offloaded, offloaded)

    assert said == counts


Rest = tuple[str, ...]
_OTHERS = ("precision", "optimizer", "attention", "batching", "engine", "zero_stage", "tensor")
_OTHERS += ("offload_optimizer", "sequence_parallel", "pipeline", "pipeline_schedule", "data")


def recorded(name: str) -> dict[tuple[Rest, float, str], tuple[float, float]]:
    """Returns seconds a sample and peak of each plan that ran in every repeat, as medians."""
    repeats = defaultdict(list)
    with (SURFACES / f"{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rest = tuple(row.get(knob, "") for knob in (*_OTHERS, "micro_batch"))
            mode = row.get("checkpoint_mode") or "full"
            repeats[rest, float(row["checkpoint_ratio"]), mode].append(row)
    return {
        plan: tuple(median(map(float, column)) for column in zip(*values, strict=True))  # type: ignore[misc]
        for plan, rows in repeats.items()
        if all(row["samples_per_s"] for row in rows)
        for values in [[(1 / float(row["samples_per_s"]), row["peak_mem_gib"]) for row in rows]]
    }


@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8])
@pytest.mark.parametrize(
    ("name", "blocks"), [("llama_1", 2), ("qwen_lengths_1", 2), ("gpt2_2", 2), ("bert_2", 4)]
)
def test_a_stated_peak_gives_the_fastest_recorded_plan(
    name: str, blocks: int, share: float
) -> None:
    """Mixes come from plans with all blocks in one way; `blocks` are the recorded shares."""
    plans = recorded(name)
    peak = sorted(peak for _, peak in plans.values())[int(share * len(plans))]
    fastest = min(seconds for seconds, held in plans.values() if held <= peak)
    chosen: list[tuple[float, tuple[Rest, float, str]]] = []
    for rest in dict.fromkeys(rest for rest, _, _ in plans):
        ends = [plans.get((rest, way["checkpoint_ratio"], way["checkpoint_mode"])) for way in WAYS]
        ends[-1] = None  # nothing was offloaded
        seconds, held = (np.array([end[at] if end else 1.0 for end in ends]) for at in (0, 1))
        allowed = np.array([end is not None for end in ends])
        counts = fastest_mix(seconds, held[None], peak, blocks, allowed)
        if counts is not None:
            knobs = mix_knobs(counts)
            plan = (rest, knobs["checkpoint_ratio"], knobs["checkpoint_mode"])
            chosen.append((float(seconds @ counts) / blocks, plan))

    measured, held_gib = plans[min(chosen)[1]]

    assert measured <= 1.02 * fastest
    assert held_gib <= 1.02 * peak
