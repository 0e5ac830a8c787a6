"""Samples packed into rows: few rows, and no wider than they need to be."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Bins = tuple[tuple[int, ...], ...]


def pack(lengths: Sequence[int], capacity: int) -> Bins:
    """Lays samples into rows of at most `capacity` tokens.

    First-fit-decreasing finds the number of rows. All rows of a micro-batch are as wide as its
    widest, so that what counts is the widest row: the same number is tried with every sample
    put into the emptiest row, and taken if that is narrower.

    Args:
        lengths: Tokens of each sample.
        capacity: Most tokens of a row.

    Returns:
        For each row, the places in `lengths` of its samples.

    Raises:
        ValueError: If a sample is longer than a row.
    """
    if lengths and max(lengths) > capacity:
        raise ValueError(f"a sample of {max(lengths)} tokens, a row holds {capacity}")
    places = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    first_fit = _first_fit(places, lengths, capacity)
    levelled = _levelled(places, lengths, len(first_fit))
    return min(first_fit, levelled, key=lambda bins: width(bins, lengths))


def width(bins: Bins, lengths: Sequence[int]) -> int:
    """Tokens of the widest row."""
    return max((sum(lengths[place] for place in row) for row in bins), default=0)


def _first_fit(places: Sequence[int], lengths: Sequence[int], capacity: int) -> Bins:
    rows: list[list[int]] = []
    room: list[int] = []
    for place in places:
        for row, free in enumerate(room):
            if lengths[place] <= free:
                rows[row].append(place)
                room[row] -= lengths[place]
                break
        else:
            rows.append([place])
            room.append(capacity - lengths[place])
    return tuple(map(tuple, rows))


def _levelled(places: Sequence[int], lengths: Sequence[int], count: int) -> Bins:
    rows: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, row) for row in range(count)]
    for place in places:
        tokens, row = heapq.heappop(filled)
        rows[row].append(place)
        heapq.heappush(filled, (tokens + lengths[place], row))
    return tuple(tuple(row) for row in rows if row)
