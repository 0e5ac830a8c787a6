"""Columns that become knobs: by their names, and by how they behave."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

import pytest

from benchmarks.published.cells import Row
from benchmarks.search.columns import knobs_of

GRID = [
    {"micro_batch": micro, "zero_stage": stage, "attention": attention}
    for micro, stage, attention in itertools.product((1, 2, 4, 8), (0, 2, 3), ("sdpa", "eager"))
]
RATES: list[float | None] = [
    None if point["micro_batch"] == 8 and point["zero_stage"] == 0 else 10.0 + 3 * place
    for place, point in enumerate(GRID)
]


def knobs(
    more: dict[str, list[Any]], rates: list[float | None] = RATES, times: int = 1
) -> set[str]:
    """The knobs of the grid with more columns, each row so often."""
    points = GRID * times
    columns = {name: [point[name] for point in points] for name in GRID[0]} | more
    rows = [
        Row({name: str(cells[at]) for name, cells in columns.items()}) for at in range(len(points))
    ]
    return set(knobs_of(rows, columns, rates * times))


def test_the_grid_alone() -> None:
    assert knobs({}) == {"micro_batch", "zero_stage", "attention"}


@pytest.mark.parametrize(
    "name",
    [
        *("trial_seconds", "seconds", "stepTime", "step time (ms)", "samples_per_s_low"),
        *("wanted_gib", "peak_reserved_mb", "cuda_mem_gb", "final_loss", "gpu_util", "repeat"),
        *("measured_flops", "p95_ms", "step_seconds_p50", "run_id", "plan_key", "started_at_s"),
        *("outcome", "error_message", "hostname", "seed", "timestamp", "tokens_per_second"),
    ],
)
def test_a_name_may_say_that_it_was_measured(name: str) -> None:
    two_values = [at % 2 for at in range(len(GRID))]

    assert name not in knobs({name: two_values})


@pytest.mark.parametrize(
    "name",
    [
        *("bucket_mib", "prefetch_mib", "flavour", "max_split_size_mb", "loader_workers"),
        *("offload_optimizer", "activation_memory_budget", "gradient_accumulation_kind"),
        *("checkpoint_mode", "pipeline_schedule", "sequence_parallel", "num_streams", "overlap"),
        *("loss_parallel", "host_offload", "power_sgd_rank", "key_padding", "min_num_params"),
    ],
)
def test_strange_columns_that_vary_are_knobs(name: str) -> None:
    points = GRID * 2
    rates = [*RATES, *(rate and 2 * rate for rate in RATES)]
    rows = [
        Row({**{n: str(v) for n, v in point.items()}, name: str(25 * (1 + at // len(GRID)))})
        for at, point in enumerate(points)
    ]

    assert name in knobs_of(rows, [*GRID[0], name], rates)


def test_a_number_of_its_own_in_each_row_is_no_knob() -> None:
    numbers = [0.1234 * (1 + at) for at in range(len(GRID))]

    assert "quux" not in knobs({"quux": numbers})


def test_words_of_their_own_in_each_row_are_no_knob() -> None:
    assert "quux" not in knobs({"quux": [f"point {at}" for at in range(len(GRID))]})


def test_what_is_there_only_for_what_ran_is_no_knob() -> None:
    ran = [rate is not None for rate in RATES]

    assert "quux" not in knobs({"quux": [str(at % 2) if ok else "" for at, ok in enumerate(ran)]})
    assert "quux" not in knobs({"quux": ["" if ok else str(at % 2) for at, ok in enumerate(ran)]})
    assert "quux" not in knobs({"quux": ["fine" if ok else "bad" for ok in ran]})


TURNS = 3


def turned(name: str, factors: list[float], noise: float) -> set[str]:
    """The knobs of the grid measured three times over, each time so much faster, and noise."""
    random = Random(0)
    points = [(turn, at) for turn in range(TURNS) for at in range(len(GRID))]
    rows = [
        Row({**{n: str(v) for n, v in GRID[at].items()}, name: str(turn)}) for turn, at in points
    ]
    rates = [
        rate and rate * factors[turn] * math.exp(random.gauss(0, noise))
        for turn, at in points
        for rate in [RATES[at]]
    ]
    return set(knobs_of(rows, [*GRID[0], name], rates))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
def test_what_counts_repeats_is_no_knob(noise: float) -> None:
    assert "quux" not in turned("quux", [1.0, 1.0, 1.0], noise)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_a_count_that_changes_what_is_measured_is_a_knob(noise: float) -> None:
    assert "quux" in turned("quux", [1.0, 1.2, 1.5], noise)


def test_a_count_that_changes_what_runs_is_a_knob() -> None:
    rates = [rate if at < len(GRID) else None for at, rate in enumerate(RATES * 2)]
    rows = [
        Row({**{n: str(v) for n, v in point.items()}, "quux": str(at // len(GRID))})
        for at, point in enumerate(GRID * 2)
    ]

    assert "quux" in knobs_of(rows, [*GRID[0], "quux"], rates)


def test_one_round_number_for_each_row_is_a_knob_if_nothing_else_is() -> None:
    rows = [Row({"bucket": str(25 * 2**at)}) for at in range(10)]

    assert set(knobs_of(rows, ["bucket"], [10.0 * (1 + at) for at in range(10)])) == {"bucket"}


def test_what_follows_from_other_columns_is_left_out() -> None:
    data = {"sharding": [f"zero{point['zero_stage']}" for point in GRID * 2]}
    data |= {"grad_accum": [64 // point["micro_batch"] for point in GRID * 2]}
    data |= {"double": [2 * point["micro_batch"] for point in GRID * 2]}

    assert knobs(data, times=2) == {"micro_batch", "zero_stage", "attention"}


def test_what_follows_by_chance_alone_stays() -> None:
    rows = [Row({"tp": str(at % 3), "dp": str(at % 4), "pp": str(at % 2)}) for at in range(8)]

    assert set(knobs_of(rows, ["tp", "dp", "pp"], [1.0 + at for at in range(8)])) == {
        *("tp", "dp", "pp")
    }


def test_two_spellings_of_a_number_are_one_value() -> None:
    rows = [Row({"micro_batch": text}) for text in ("1", "1.0", "2", "2.0")]

    assert knobs_of(rows, ["micro_batch"], [1.0, 1.0, 2.0, 2.0]) == {
        "micro_batch": ["1", "1", "2", "2"]
    }
