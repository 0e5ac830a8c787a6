"""Sequence packing, and fill ratios of micro-batches whose samples differ in length.

A model is traced on samples of the longest length. Other micro-batches compute only the tokens of
their rows: a padded row is as long as its longest sample, a packed one holds several samples. Fill
ratios are the share of the traced work. They follow the sampling of a step (random samples of an
epoch) and its arrangement (`workers.data.batches`, `arrange`, `collate`).
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
_SAMPLES = 8192  # drawn to estimate a mean
_MIN_STEPS, _MAX_STEPS = 8, 256  # steps that these samples are drawn in
_PACKED_BATCHES, _PACKED_SAMPLES = 64, 4096  # at least, packed to estimate a mean
_MAX_PACKED = 256  # samples of a micro-batch, beyond which rows do not get fuller


def pack(lengths: Sequence[int], capacity: int) -> Bins:
    """Packs samples into rows of at most `capacity` tokens.

    First-fit-decreasing finds the number of rows. All rows of a micro-batch are padded to its
    widest one, so the same number of rows is also tried with each sample in the emptiest row, and
    the narrower result wins.

    Args:
        lengths: Tokens of each sample, each of which fits in a row.
        capacity: Maximum tokens of a row.

    Returns:
        For each row, the indices in `lengths` of its samples.
    """
    indices = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    first_fit = _first_fit(indices, lengths, capacity)
    levelled = _levelled(indices, lengths, len(first_fit))
    return min(first_fit, levelled, key=lambda bins: width(bins, lengths))


def width(bins: Bins, lengths: Sequence[int]) -> int:
    """Returns the tokens of the widest row."""
    return max((sum(lengths[index] for index in row) for row in bins), default=0)


def _first_fit(indices: Sequence[int], lengths: Sequence[int], capacity: int) -> Bins:
    rows: list[list[int]] = []
    room: list[int] = []
    for index in indices:
        for row, free in enumerate(room):
            if lengths[index] <= free:
                rows[row].append(index)
                room[row] -= lengths[index]
                break
        else:
            rows.append([index])
            room.append(capacity - lengths[index])
    return tuple(map(tuple, rows))


def _levelled(indices: Sequence[int], lengths: Sequence[int], count: int) -> Bins:
    rows: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, row) for row in range(count)]
    for index in indices:
        tokens, row = heapq.heappop(filled)
        rows[row].append(index)
        heapq.heappush(filled, (tokens + lengths[index], row))
    return tuple(tuple(row) for row in rows if row)


def fill_ratios(table: PlanTable, footprint: Footprint) -> Numbers:
    """Returns the fill ratio of each plan: tokens in rows over those of only longest samples.

    Returns:
        Means over the micro-batches of a step; 1 if all samples have one length or their lengths
        are unknown, above 1 if rounding makes rows longer than the longest sample.
    """
    if not footprint.varied or not footprint.lengths:
        return np.ones(len(table))
    micro = table.column("micro_batch").astype(np.int64)
    samples = micro * table.column("accumulation") * table.column("data")
    code = table.codes["batching"].astype(np.int64)
    cases = np.stack([code, micro, samples, _multiples(table)], axis=1)
    keys, case = np.unique(cases, axis=0, return_inverse=True)
    batchings, lengths = table.values["batching"], footprint.lengths
    tokens_per_sample = np.array(
        [
            _tokens(lengths, footprint.row_tokens, batchings[code], batch, step, multiple) / batch
            for code, batch, step, multiple in keys.tolist()
        ]
    )
    share: Numbers = tokens_per_sample[case.reshape(-1)] / footprint.tokens
    return np.minimum(share, longest_fill(table, footprint))


def longest_fill(table: PlanTable, footprint: Footprint) -> Numbers:
    """Returns the tokens in each plan's row of the longest sample, over those of the sample."""
    tokens = max(footprint.tokens, 1)
    return _rounded(tokens, _multiples(table)) / tokens


def _multiples(table: PlanTable) -> Counts:
    """Returns the tokens to a multiple of which rows are padded; 1 if only ranks need a multiple.

    A model is traced on rows that its ranks can split.
    """
    multiple = table.column("pad_multiple").astype(np.int64)
    ranks = np.where(table.column("sequence_parallel"), table.column("tensor"), 1).astype(np.int64)
    return np.where(multiple > 1, np.lcm(multiple, ranks), 1)


def _rounded(tokens: Counts | int, multiple: Counts | int) -> Counts:
    return np.asarray(-(-tokens // multiple) * multiple)


@functools.lru_cache(maxsize=4096)
def _tokens(
    lengths: tuple[int, ...],
    row_tokens: int,
    batching: Batching,
    micro_batch: int,
    samples: int,
    multiple: int,
) -> float:
    """Returns the mean tokens in the rows of a micro-batch, including padding."""
    steps = _steps(lengths, samples)
    match batching:
        case "padded":
            longest = steps.reshape(-1, micro_batch).max(axis=1)
            return micro_batch * float(_rounded(longest, multiple).mean())
        case "grouped":
            longest = -np.sort(-steps, axis=1)[:, ::micro_batch]
            return micro_batch * float(_rounded(longest, multiple).mean())
        case "packed":
            count = min(micro_batch, _MAX_PACKED)
            drawn = max(_PACKED_BATCHES, _PACKED_SAMPLES // count)
            batches = steps.reshape(-1, micro_batch)[:drawn, :count].tolist()
            packed = [(pack(batch, row_tokens), batch) for batch in batches]
            filled = sum(len(rows) * width(rows, batch) for rows, batch in packed)
            # a ratio, since a few batches say more of the padding than of the lengths
            return micro_batch * float(steps.mean()) * filled / sum(map(sum, batches))


@functools.lru_cache(maxsize=64)
def _steps(lengths: tuple[int, ...], samples: int) -> Counts:
    rng = np.random.default_rng(0)
    steps = min(max(_SAMPLES // samples, _MIN_STEPS), _MAX_STEPS)
    drawn = steps * samples  # an epoch has all lengths evenly, its steps have not
    indices = (np.arange(drawn) + rng.random(drawn)) * len(lengths) / drawn
    return rng.permutation(np.array(lengths)[indices.astype(np.intp)]).reshape(steps, samples)
