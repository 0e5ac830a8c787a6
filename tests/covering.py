"""Parameters of a test: a covering part by default, all combinations in the thorough run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def every_pair(**values: Sequence[Any]) -> dict[str, Any]:
    """Arguments of `parametrize`: every pair of two parameters' values runs by default.

    Combinations that add no new pair are marked thorough.
    """
    return _covering(2, values)


def every_value(**values: Sequence[Any]) -> dict[str, Any]:
    """Arguments of `parametrize`: every value of each parameter runs by default.

    Combinations that add no new value are marked thorough.
    """
    return _covering(1, values)


def spread(length: int, count: int) -> set[int]:
    """Returns places in a list, evenly from the first to the last; of one place, the last."""
    if count == 1:
        return {length - 1}
    return {round(number * (length - 1) / (count - 1)) for number in range(count)}


def _covering(strength: int, values: dict[str, Sequence[Any]]) -> dict[str, Any]:
    every = list(product(*(range(len(each)) for each in values.values())))
    chosen, covered = set(), set[tuple[tuple[int, int], ...]]()

    def parts(combination: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(combination), strength))

    wanted = set().union(*map(parts, every))
    while covered != wanted:
        best = max(every, key=lambda combination: len(parts(combination) - covered))
        chosen.add(best)
        covered |= parts(best)
    rows = [
        pytest.param(
            *(each[at] for each, at in zip(values.values(), combination, strict=True)),
            marks=() if combination in chosen else pytest.mark.thorough,
        )
        for combination in every
    ]
    return {"argnames": tuple(values), "argvalues": rows}
