"""The largest micro-batch first, in an order that can be told beforehand."""

import numpy as np

from benchmarks.search.competitors.base import ByStrategy
from benchmarks.search.competitors.layout import Layout, largest_micro_batch, stage_of
from tests.benchmarks.search.toys import order_of, toy_surface


def micro_order(offered: list[float], largest: float) -> list[float]:
    """Micro-batches in the order in which one setting is tried, of which some run out."""
    surface = toy_surface(
        [{"micro_batch": micro} for micro in offered],
        [micro if micro <= largest else None for micro in offered],
    )
    competitor = ByStrategy(surface, 0, largest_micro_batch)
    strategy = largest_micro_batch(surface, np.random.default_rng(0))
    wanted, asked = next(strategy, None), []
    while wanted is not None:
        asked.append(offered[wanted])
        try:
            wanted = strategy.send(surface.trials[wanted][0])
        except StopIteration:
            wanted = None
    first = order_of(surface, competitor, len(asked))
    assert [point["micro_batch"] for point in first] == asked
    return asked


def test_grows_by_doubling_until_it_runs_out() -> None:
    assert micro_order([1, 2, 4, 8, 16], largest=4) == [1, 2, 4, 8]


def test_backs_off_to_the_largest_that_runs() -> None:
    assert micro_order([1, 2, 3, 4, 5, 6, 7, 8], largest=6) == [1, 2, 4, 8, 7, 6]


def test_grows_to_the_largest_on_offer() -> None:
    assert micro_order([1, 2, 3], largest=3) == [1, 2, 3]
    assert micro_order([2, 4, 5], largest=5) == [2, 4, 5]


def test_a_setting_in_which_nothing_runs_costs_one_trial() -> None:
    assert micro_order([1, 2, 4], largest=0) == [1]


def test_stages_that_shard_least_come_first() -> None:
    candidates = [
        {"zero_stage": str(stage), "ckpt": ckpt, "micro_batch": micro}
        for stage in (3, 0, 2)
        for ckpt in ("none", "full")
        for micro in (1.0, 2.0)
    ]
    surface = toy_surface(candidates, [1.0] * len(candidates))
    asked = order_of(surface, ByStrategy(surface, 5, largest_micro_batch), len(candidates))

    assert [point["zero_stage"] for point in asked] == ["0"] * 4 + ["2"] * 4 + ["3"] * 4
    assert [point["micro_batch"] for point in asked] == [1.0, 2.0] * 6


def test_what_is_left_comes_at_random() -> None:
    candidates = [{"micro_batch": float(micro)} for micro in (1, 2, 4, 8, 16, 32)]
    surface = toy_surface(candidates, [1.0, 1.0, None, None, None, None])
    ends = set()
    for seed in range(20):
        asked = order_of(surface, ByStrategy(surface, seed, largest_micro_batch), 6)
        assert [point["micro_batch"] for point in asked[:3]] == [1, 2, 4]
        ends.add(tuple(point["micro_batch"] for point in asked[3:]))

    assert len(ends) > 3


def test_without_micro_batch_each_setting_is_one_trial() -> None:
    candidates = [{"sharding": word} for word in ("zero3", "ddp", "fsdp_grad_op")]
    surface = toy_surface(candidates, [1.0, 1.0, 1.0])
    asked = order_of(surface, ByStrategy(surface, 0, largest_micro_batch), 3)

    assert [point["sharding"] for point in asked] == ["ddp", "fsdp_grad_op", "zero3"]


def test_stages_by_their_words() -> None:
    words = {
        **{"0": 0, "1": 1, "2.0": 2, "3": 3, "zero1": 1, "ZeRO-2": 2, "zero_3": 3},
        **{"ddp": 0, "none": 0, "": 0, "deepspeed zero0": 0, "stage 2": 2},
        **{"fsdp_grad_op": 2, "hsdp fsdp_grad_op degree 4": 2, "fsdp_full": 3, "hsdp": 3},
        **{"full_shard": 3, "shard_grad_op": 2},
    }

    assert {word: stage_of(word) for word in words} == words


def test_places_tell_setting_stage_and_micro_batch() -> None:
    candidates = [
        {"micro_batch": 4.0, "sharding": "zero2", "attention": "sdpa"},
        {"micro_batch": 2.0, "sharding": "zero2", "attention": "sdpa"},
        {"micro_batch": 2.0, "sharding": "zero2", "attention": "eager"},
    ]
    layout = Layout.of(toy_surface(candidates, [1.0, 1.0, 1.0]))

    assert layout.settings == (("sdpa",), ("eager",))
    assert layout.rows(("sdpa",), 2) == {2.0: 1, 4.0: 0}
    assert layout.stages(("eager",)) == [2]
