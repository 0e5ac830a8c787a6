"""Tables as surfaces: the published columns, strange ones, and few of them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.published.baseline import ConstantMfu
from benchmarks.search.surfaces import (
    FAILURE_SECONDS,
    START_SECONDS,
    STEPS,
    Surface,
    surfaces_in,
    within,
)
from search_spaces.errors import UserError
from tests.benchmarks.published.rows import write_table
from tests.benchmarks.search.toys import toy_surface, write_csv


def rows() -> list[dict[str, str]]:
    """Twelve candidates; one ran out, one failed, one is repeated, one contradicts itself."""
    made = [
        {
            "micro_batch": str(2**power),
            "ckpt": ckpt,
            "samples_per_s": str(10 * (power + 1) * (0.8 if ckpt == "full" else 1)),
            "ranking_sets": "S1",
            "global_batch": "64",
            "grad_accum": "",
        }
        for power in range(6)
        for ckpt in ("none", "full")
    ]
    made[10] |= {"samples_per_s": "", "oom": "true"}
    made[9] |= {"samples_per_s": "", "notes": "RUN FAILED"}
    again = {**made[0], "samples_per_s": "12"}
    odd = {**made[1], "samples_per_s": "999", "notes": "CHECK"}
    return [*made, again, odd]


def surface_of(place: Path, least: int = 9) -> Surface:
    (found,) = surfaces_in(place, lambda _: ConstantMfu(), least=least)
    return found


def few(**cells: Any) -> list[dict[str, Any]]:
    """Eight rows of two knobs that say no more than they must."""
    return [
        {"micro_batch": micro, "bucket_mib": bucket, "samples_per_s": micro * bucket, **cells}
        for micro in (1, 2, 4, 8)
        for bucket in (10, 20)
    ]


def test_a_set_is_a_surface(tmp_path: Path) -> None:
    write_table(tmp_path, "table", rows())
    surface = surface_of(tmp_path)

    assert surface.name == "table"
    assert len(surface) == 12
    assert set(surface.distributions) == {"micro_batch", "ckpt"}
    assert int(np.isnan(surface.rate).sum()) == 2
    assert surface.rate[0] == pytest.approx(11)  # the mean of the repeated one
    assert surface.best == pytest.approx(50)
    assert surface.told_by == "rows"
    assert surface.log_rate is not None
    assert len(surface.log_rate) == 12


@pytest.mark.parametrize(
    "told", [{"oom": "true"}, {"notes": "RUN FAILED: ..."}, {"notes": "planner: r_cost=inf"}]
)
def test_what_failed_has_no_throughput_whatever_its_row_says(
    tmp_path: Path, told: dict[str, str]
) -> None:
    """The fastest by its row; a planner's guess, or what it reached until it ended."""
    made = few()
    fastest = max(range(len(made)), key=lambda at: made[at]["samples_per_s"])
    made[fastest] |= told
    surface = surface_of(write_csv(tmp_path / "failed.csv", made), 2)

    assert int(np.isnan(surface.rate).sum()) == 1
    assert surface.best < made[fastest]["samples_per_s"]


def test_noise_is_what_repeats_tell(tmp_path: Path) -> None:
    made = few() * 2
    for at, row in enumerate(made):
        made[at] = row | {"samples_per_s": row["samples_per_s"] * (1.1 if at < 8 else 1 / 1.1)}
    write_csv(tmp_path / "table.csv", made)

    # two of each, apart by a factor of 1.21
    assert surface_of(tmp_path, 2).noise == pytest.approx(math.log(1.21) / 2**0.5)


def test_each_set_of_a_table_has_its_name(tmp_path: Path) -> None:
    write_table(tmp_path, "table", [*rows(), *(row | {"ranking_sets": "S2; S3"} for row in rows())])
    found = surfaces_in(tmp_path, lambda _: ConstantMfu(), least=9)

    assert [surface.name for surface in found] == ["table/S1", "table/S2", "table/S3"]


def test_small_sets_count_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    small = [row | {"ranking_sets": "S2"} for row in rows()[:4]]
    write_table(tmp_path, "table", [*rows(), *small])
    write_table(tmp_path, "another", small)

    assert [len(one) for one in surfaces_in(tmp_path, lambda _: ConstantMfu(), least=9)] == [12]
    assert len(surface_of(tmp_path / "another.csv")) == 4


def test_a_table_without_sets_and_published_columns_is_a_surface(tmp_path: Path) -> None:
    surface = surface_of(write_csv(tmp_path / "lone.csv", few()), 2)

    assert surface.name == "lone"
    assert set(surface.distributions) == {"micro_batch", "bucket_mib"}
    assert surface.log_rate is None
    assert surface.told_by == "nothing"


def test_a_table_of_several_models_is_none(tmp_path: Path) -> None:
    made = [row | {"model": name} for name in ("one", "two") for row in few()]
    write_csv(tmp_path / "two.csv", made)

    assert surfaces_in(tmp_path, lambda _: ConstantMfu(), least=2) == ()


def test_peaks_and_what_was_wanted_are_told_over_the_limit(tmp_path: Path) -> None:
    made = few(gpu_mem_gib=16, oom="false", peak_mem_gib=8)
    made[7] |= {"oom": "true", "samples_per_s": "", "peak_mem_gib": "", "wanted_gib": 20}
    made[6] |= {"oom": "true", "samples_per_s": "", "peak_mem_gib": ""}
    made[5] |= {"peak_mem_gib": 17}  # above the limit, and it ran
    surface = surface_of(write_csv(tmp_path / "table.csv", made), 2)
    shares = [trials[0].log_share for trials in surface.trials]

    assert shares[0] == pytest.approx(math.log(0.5))
    assert shares[5:7] == [None, None]
    assert shares[7] == pytest.approx(math.log(20 / 16))


def test_seconds_are_modelled_where_nobody_says_them(tmp_path: Path) -> None:
    made = few(global_batch=64)
    made[7] |= {"oom": "true", "samples_per_s": ""}
    surface = surface_of(write_csv(tmp_path / "table.csv", made), 2)

    assert surface.trials[0][0].seconds == pytest.approx(START_SECONDS + STEPS * 64 / 10)
    assert surface.trials[7][0].seconds == FAILURE_SECONDS


def test_a_candidate_that_seldom_ran_is_infeasible(tmp_path: Path) -> None:
    made = [row | {"repeat": turn, "oom": "false"} for turn in (1, 2, 3) for row in few()]
    for at in (0, 8):
        made[at] |= {"oom": "true", "samples_per_s": ""}
    made[1] |= {"oom": "true", "samples_per_s": ""}
    surface = surface_of(write_csv(tmp_path / "table.csv", made), 2)

    assert math.isnan(surface.rate[0])
    assert [trial.rate for trial in surface.trials[0]] == [None, None]
    assert [trial.rate for trial in surface.trials[1]] == [20, 20]


def test_rows_are_compared_in_one_unit(tmp_path: Path) -> None:
    made = few()
    for row in made[:6]:
        row |= {"tokens_per_s_per_gpu": row.pop("samples_per_s") * 1000}
    surface = surface_of(write_csv(tmp_path / "table.csv", made), 2)

    assert len(surface) == 6
    assert surface.best == 80_000


def test_no_place_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no directory and no table"):
        surfaces_in(tmp_path / "none", lambda _: ConstantMfu(), least=9)
    with pytest.raises(UserError, match="has no table"):
        surfaces_in(tmp_path, lambda _: ConstantMfu(), least=9)


def test_a_stated_peak_is_the_limit() -> None:
    candidates = [{"micro_batch": 2.0**power} for power in range(5)]
    surface = toy_surface(
        candidates,
        [1.0, 2.0, 3.0, 4.0, None],
        peaks_gib=[2.0, 4.0, 8.0, 12.0, 20.0],
        log_share=[0.0] * 5,
    )

    stated = within(surface, 1 / 3)  # of the four that ran: 4 GiB, a quarter of the limit

    assert stated.best == 2.0
    assert [trial.rate for (trial,) in stated.trials] == [1.0, 2.0, None, None, None]
    shares = [trial.log_share for (trial,) in stated.trials]
    assert np.exp(shares).tolist() == pytest.approx([0.5, 1.0, 2.0, 3.0, 5.0])
    assert np.exp(stated.log_share).tolist() == pytest.approx([4.0] * 5)
