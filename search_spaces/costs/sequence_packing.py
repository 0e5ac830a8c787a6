"""How much of a micro-batch is computed where samples differ in length.

A model is traced on samples of the longest length. What a micro-batch of others computes are the
tokens of its rows: padded ones are as long as the longest sample in them, packed ones hold several
samples. That share of the traced work is here, by how a step's samples are drawn (one of each
stratum of lengths) and dealt (`workers.data.batches`, `arrange`, `collate`).
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence

import numpy as np

from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_features import Counts, Numbers
from search_spaces.plan import Batching
from search_spaces.plan_table import PlanTable

Bins = tuple[tuple[int, ...], ...]
_DRAWN = 8192  # samples that are drawn to know a mean,
_FEWEST, _MOST = 8, 256  # in so many steps
_PACKED = 64  # micro-batches that are packed
_MOST_PACKED = 256  # samples of a micro-batch beyond which rows are as full as they get


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


def fill_ratios(table: PlanTable, footprint: Footprint) -> Numbers:
    """For each plan, the tokens of a micro-batch's rows over those of as many longest samples.

    In (0, 1]; the mean over the micro-batches of a step. 1 where all samples are of one length, or
    nobody knows their lengths.
    """
    if not footprint.varied or not footprint.lengths:
        return np.ones(len(table))
    micro = table.column("micro_batch").astype(np.int64)
    samples = micro * table.column("accumulation") * table.column("data")
    code = table.codes["batching"].astype(np.int64)
    keys, case = np.unique(np.stack([code, micro, samples], axis=1), axis=0, return_inverse=True)
    batchings = table.values["batching"]
    found = np.array(
        [
            _tokens(footprint.lengths, footprint.row_tokens, batchings[which], batch, whole) / batch
            for which, batch, whole in keys.tolist()
        ]
    )
    share: Numbers = found[case.reshape(-1)] / footprint.tokens
    return np.minimum(share, 1.0)


@functools.lru_cache(maxsize=4096)
def _tokens(
    lengths: tuple[int, ...], row_tokens: int, batching: Batching, micro_batch: int, samples: int
) -> float:
    """Mean tokens in the rows of a micro-batch, those that fill rows up included."""
    steps = _steps(lengths, samples)
    match batching:
        case "padded":
            return micro_batch * float(steps.reshape(-1, micro_batch).max(axis=1).mean())
        case "grouped":
            longest = -np.sort(-steps, axis=1)[:, ::micro_batch]
            return micro_batch * float(longest.mean())
        case "packed":
            count = min(micro_batch, _MOST_PACKED)
            drawn = steps.reshape(-1, micro_batch)[:_PACKED, :count].tolist()
            return float(np.mean([_row_tokens(one, row_tokens) for one in drawn])) * (
                micro_batch / count
            )


@functools.lru_cache(maxsize=64)
def _steps(lengths: tuple[int, ...], samples: int) -> Counts:
    """Lengths of the samples of some steps, one of each stratum, in random order."""
    rng = np.random.default_rng(0)
    steps = min(max(_DRAWN // samples, _FEWEST), _MOST)
    places = (np.arange(samples) + rng.random((steps, samples))) * len(lengths) / samples
    return rng.permuted(np.array(lengths)[places.astype(np.intp)], axis=1)


def _row_tokens(lengths: list[int], most: int) -> int:
    rows = pack(lengths, most)
    return len(rows) * width(rows, lengths)
