"""The search for the smallest device count, against trying all counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.forecast.alternatives import (
    MOST_RANKS,
    min_devices,
    sizes_between,
    smallest_suitable,
)
from search_spaces.hardware.catalogue import catalogue, known_device


def test_counts_that_people_use() -> None:
    assert sizes_between(1, 70, 8) == (1, 2, 3, 4, 6, 8, 16, 24, 32, 48, 64)
    assert sizes_between(5, 20, 4) == (8, 12, 16)


@given(
    least=st.integers(1, 5000),
    start=st.integers(1, 20_000),
    whole=st.sampled_from([1, 4, 8, 72]),
    named=st.lists(st.integers(1, 5000), max_size=3),
)
def test_finds_the_least_count_at_which_it_fits(
    least: int, start: int, whole: int, named: list[int]
) -> None:
    asked: list[int] = []

    def fits(ranks: int) -> bool:
        asked.append(ranks)
        return ranks >= least

    found = min_devices(fits, start=start, whole=whole, named=tuple(named))

    powers = {2**power for power in range(14)}
    usual = set(sizes_between(1, 8192, whole)) | powers | set(named)
    assert found == min(size for size in usual if size >= least)
    assert len(asked) <= 20 + len(named)  # each may take a second


def test_nothing_is_enough() -> None:
    asked: list[int] = []

    def never(ranks: int) -> bool:
        asked.append(ranks)
        return False

    assert min_devices(never, start=8, whole=8, named=(8, 24)) is None
    assert max(asked) <= MOST_RANKS


def test_a_count_that_the_user_named_is_found_where_no_power_of_two_fits() -> None:
    found = min_devices(lambda ranks: ranks == 40, start=8, whole=8, named=(40,))

    assert found == 40


def test_no_part_of_a_gpu_is_advised() -> None:
    beside = known_device("A100-40")
    offered = smallest_suitable(39 * 2**30, beside, catalogue())

    assert offered
    assert not [device.name for device in offered if " MIG " in device.name]
