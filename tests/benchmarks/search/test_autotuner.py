"""The autotuner's order, its memory estimate and its plateau, by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.search.competitors.autotuner import GIB, Memory, autotuner, instantiation_gib
from benchmarks.search.competitors.base import ByStrategy
from benchmarks.search.surfaces import Setup, Surface
from tests.benchmarks.search.toys import LIMIT_GIB, order_of, toy_surface

UNKNOWN = Setup(parameters=None, limit_gib=None, gpus=None, precision="bf16")
Point = tuple[int, float]


def asked_for(surface: Surface, seed: int = 0) -> list[dict[str, Any]]:
    """Returns what the strategy measures before it ends, each candidate once."""
    strategy = autotuner(surface, np.random.default_rng(seed))
    wanted, asked = next(strategy, None), []
    while wanted is not None:
        if dict(surface.candidates[wanted]) not in asked:
            asked.append(dict(surface.candidates[wanted]))
        try:
            wanted = strategy.send(surface.trials[wanted][0])
        except StopIteration:
            wanted = None
    assert asked == order_of(surface, ByStrategy(surface, seed, autotuner), len(asked))
    return asked


def tuned(
    rate: Callable[[int, float], float | None],
    *,
    stages: tuple[int, ...] = (0, 2, 3),
    micros: tuple[float, ...] = (1, 2, 4, 8, 16),
    peak: Callable[[int, float], float] | None = None,
    setup: Setup = UNKNOWN,
) -> list[Point]:
    points = [(stage, float(micro)) for stage in stages for micro in micros]
    surface = toy_surface(
        [{"zero_stage": float(stage), "micro_batch": micro} for stage, micro in points],
        [rate(*point) for point in points],
        peaks_gib=None if peak is None else [peak(*point) for point in points],
        setup=setup,
    )
    return [(int(point["zero_stage"]), point["micro_batch"]) for point in asked_for(surface)]


def test_profiles_then_smallest_and_largest_then_between() -> None:
    def rate(stage: int, micro: float) -> float:
        return 10 * micro - stage

    # the profile; stage 0: smallest, largest, the half of it; then only what may beat 16
    assert tuned(rate) == [(3, 1), (0, 1), (0, 16), (0, 8), (2, 16), (3, 16)]


def test_halves_where_the_largest_does_not_run() -> None:
    def rate(stage: int, micro: float) -> float | None:
        return 10 * micro if micro <= 4 else None

    # of 1, 2, 4, 8, 16: 4 runs and is faster, 8 does not; then down to the half of 4
    assert tuned(rate, stages=(3,)) == [(3, 1), (3, 16), (3, 8), (3, 4), (3, 2)]


@pytest.mark.parametrize(
    ("gain", "order"), [(1.04, [1, 8, 7, 4, 2, 3]), (1.06, [1, 8, 7, 4, 6, 3, 5])]
)
def test_stops_halving_where_five_per_cent_are_not_to_be_had(gain: float, order: list[int]) -> None:
    def rate(_: int, micro: float) -> float | None:
        return None if micro > 6 else 10.0 if micro < 4 else 10.0 * gain

    # 8 and 7 (95 % of it) fail, 4 is the middle: 4 % more end it there, 6 % go on to 6, which is
    # no faster; then what lies between the half of that and it
    assert tuned(rate, stages=(3,), micros=(1, 2, 3, 4, 5, 6, 7, 8)) == [(3, at) for at in order]


def test_a_stage_that_the_estimate_rules_out_is_passed_over() -> None:
    # 0.5 G parameters in bf16, 4 GPUs: 16 bytes each without sharding
    setup = Setup(parameters=1.5 * GIB, limit_gib=LIMIT_GIB, gpus=4.0, precision="bf16")

    def peak(stage: int, micro: float) -> float:
        return instantiation_gib(setup, stage) + micro

    asked = tuned(lambda _, micro: 10 * micro, peak=peak, setup=setup, micros=(1, 2, 4))

    assert all(stage > 0 for stage, _ in asked)
    assert asked[0] == (3, 1)


def test_estimate_allows_what_the_profile_leaves() -> None:
    setup = Setup(parameters=GIB / 2, limit_gib=16.0, gpus=4.0, precision="fp16")
    memory = Memory(setup=setup, activation_gib=0.5)

    assert [instantiation_gib(setup, stage) for stage in range(4)] == [10.0, 4.0, 3.25, 2.5]
    assert [memory.largest(stage) for stage in range(4)] == [12.0, 24.0, 25.0, 27.0]
    assert Memory(setup=setup, activation_gib=6.0).largest(0) == 0.0
    assert Memory(setup=setup, activation_gib=None).largest(0) == float("inf")


def test_full_precision_is_counted_as_the_autotuner_does() -> None:
    setup = Setup(parameters=GIB, limit_gib=16.0, gpus=2.0, precision="fp32")

    assert [instantiation_gib(setup, stage) for stage in range(4)] == [16.0, 12.0, 10.0, 8.0]
    assert instantiation_gib(UNKNOWN, 0) == 0.0


def test_a_profile_that_does_not_run_ends_it() -> None:
    assert tuned(lambda _, __: None if _ == 3 else 1.0) == [(3, 1)]


def test_other_settings_are_a_grid_until_five_bring_nothing() -> None:
    candidates = [
        {"bucket": float(bucket), "micro_batch": micro}
        for bucket in range(10)
        for micro in (1.0, 2.0)
    ]
    flat = toy_surface(candidates, [10 * point["micro_batch"] for point in candidates])
    asked = asked_for(flat)
    base = asked[0]["bucket"]
    others = [point for point in asked if point["bucket"] != base]

    assert [point["micro_batch"] for point in asked[:2]] == [1.0, 2.0]
    assert len(others) == 5
    assert others[0]["bucket"] == min(b for b in range(10) if b != base)

    rising = toy_surface(
        candidates, [10 * point["micro_batch"] + point["bucket"] for point in candidates]
    )
    orders = [asked_for(rising, seed) for seed in range(50)]
    assert {len(order) for order in orders if order[0]["bucket"] == 0} == {len(candidates)}


@pytest.mark.parametrize("knob", ["zero_stage", "attention"])
def test_without_micro_batch_each_stage_is_one_trial(knob: str) -> None:
    surface = toy_surface([{knob: float(at)} for at in range(4)], [1.0, 2.0, 3.0, 4.0])
    asked = [point[knob] for point in asked_for(surface)]

    assert sorted(asked) == [0, 1, 2, 3]
    if knob == "zero_stage":
        assert asked == [3, 0, 1, 2]


def test_a_stage_that_holds_no_more_than_the_one_before_is_passed_over() -> None:
    points = [(0, 1.0), (0, 2.0), (0, 4.0), (0, 8.0), (3, 1.0), (3, 2.0), (3, 4.0)]
    surface = toy_surface(
        [{"zero_stage": float(stage), "micro_batch": micro} for stage, micro in points],
        [10 * micro for _, micro in points],
    )
    asked = [(point["zero_stage"], point["micro_batch"]) for point in asked_for(surface)]

    assert asked == [(3, 1), (0, 1), (0, 8), (0, 4)]
