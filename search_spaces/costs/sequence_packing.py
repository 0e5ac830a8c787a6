"""Sequence packing, cuts by tokens, and fill ratios of micro-batches of unequal samples.

A model is traced on samples of the longest length. Other micro-batches compute only the tokens of
their rows: a padded row is as long as its longest sample, a packed one holds several samples. Fill
ratios are the share of the traced work. They follow the sampling of a step (random samples of an
epoch) and its arrangement (`workers.data.batches`, `arrange`, `collate`).
"""

import functools
import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

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


def cut_by_tokens(
    widths: Sequence[int], most: int, tokens: int, ranks: int, *, evenly: bool = True
) -> list[range]:
    """Cuts the samples of a step into micro-batches of at most some tokens, padding included.

    Collectives need the same number of micro-batches on all ranks. It is the least that suffices,
    and none is without samples. Of their largest tokens too the least is chosen.

    Args:
        widths: Tokens in the row of each sample, in the order of the step.
        most: Maximum samples of a micro-batch.
        tokens: Maximum tokens of a micro-batch; a sample that is longer has one of its own.
        ranks: Ranks that deal the micro-batches among each other, at most one for each sample.
        evenly: False to fill micro-batches up, one after the other.

    Returns:
        The indices in `widths` of each micro-batch, in order; a multiple of `ranks`.

    Source:
        verl/utils/seqlen_balancing.py, rearrange_micro_batches: ranks agree on the largest number.
    """
    cuts = _cut(widths, most, tokens)
    count = -(-len(cuts) // ranks) * ranks
    if evenly:
        limits = range(max(widths), max(*widths, tokens) + 1)
        fit = bisect_left(limits, True, key=lambda one: len(_cut(widths, most, one)) <= count)
        cuts = _cut(widths, most, limits[fit])
    while len(cuts) < count:
        sizes = [(len(cut) > 1) * len(cut) * max(widths[cut.start : cut.stop]) for cut in cuts]
        at = sizes.index(max(sizes))
        half = len(cuts[at]) // 2
        cuts[at : at + 1] = [cuts[at][:half], cuts[at][half:]]
    return cuts


def _cut(widths: Sequence[int], most: int, tokens: int) -> list[range]:
    cuts, start, widest = list[range](), 0, 0
    for index, row in enumerate(widths):
        widest, count = max(widest, row), index - start
        if count == most or (count and (count + 1) * widest > tokens):
            cuts.append(range(start, index))
            start, widest = index, row
    return [*cuts, range(start, len(widths))]


def mean_passes(table: PlanTable, footprint: Footprint) -> Numbers:
    """Returns the mean forward passes of each plan's step, more if tokens limit them."""
    passes = table.column("accumulation").astype(float)
    limited = np.flatnonzero(table.column("micro_batch_tokens") > 0)
    if len(limited):
        keys, case = _cases(table.take(limited))
        lengths = footprint.lengths or (footprint.tokens,)
        counts = [_cut_steps(lengths, key)[0] for key in keys]
        passes[limited] = np.array(counts)[case]
    return passes


def largest_fill(table: PlanTable, footprint: Footprint, samples: Numbers) -> Numbers:
    """Returns the tokens of each plan's largest micro-batch, over those of the longest samples.

    Args:
        table: The plans.
        footprint: Of their model.
        samples: Mean samples of a micro-batch.
    """
    row, tokens = longest_fill(table, footprint), table.column("micro_batch_tokens")
    largest = table.column("micro_batch") * row
    limit = np.clip(tokens / max(footprint.tokens, 1), row, largest)
    return np.where(tokens > 0, limit, largest) / samples


def fill_ratios(table: PlanTable, footprint: Footprint) -> Numbers:
    """Returns the fill ratio of each plan: tokens in rows over those of only longest samples.

    Returns:
        Means over the micro-batches of a step; 1 if all samples have one length or their lengths
        are unknown, above 1 if rounding makes rows longer than the longest sample.
    """
    if not footprint.varied or not footprint.lengths:
        return np.ones(len(table))
    keys, case = _cases(table)
    lengths, row_tokens = footprint.lengths, footprint.row_tokens
    tokens_per_sample = np.array(
        [
            _cut_steps(lengths, key)[1] if key.tokens else _row_tokens(lengths, row_tokens, key)
            for key in keys
        ]
    )
    share: Numbers = tokens_per_sample[case] / footprint.tokens
    return np.minimum(share, longest_fill(table, footprint))


def longest_fill(table: PlanTable, footprint: Footprint) -> Numbers:
    """Returns the tokens in each plan's row of the longest sample, over those of the sample."""
    tokens = max(footprint.tokens, 1)
    return _rounded(tokens, _multiples(table)) / tokens


class _Case(NamedTuple):
    batching: Batching
    micro_batch: int
    samples: int  # of a step
    multiple: int
    data: int  # 0 without `tokens`
    tokens: int


def _cases(table: PlanTable) -> tuple[list[_Case], Counts]:
    """Returns the cases of a table's plans, and the case of each."""
    micro, ranks, context, tokens = (
        table.column(name).astype(np.int64)
        for name in ("micro_batch", "data", "context", "micro_batch_tokens")
    )
    data = ranks // context
    code, samples = table.codes["batching"], micro * table.column("accumulation") * data
    columns = (code, micro, samples, _multiples(table), np.where(tokens > 0, data, 0), tokens)
    keys, case = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    batchings = table.values["batching"]
    return [_Case(batchings[code], *key) for code, *key in keys.tolist()], case.reshape(-1)


@functools.lru_cache(maxsize=4096)
def _cut_steps(lengths: tuple[int, ...], case: _Case) -> tuple[float, float]:
    """Returns the mean passes of a step that tokens limit, and the tokens per sample in rows."""
    passes, filled, steps = 0, 0, _rounded(_steps(lengths, case.samples), case.multiple)
    if case.batching == "grouped":
        steps = -np.sort(-steps, axis=1)
    for widths in steps.tolist():
        cuts = cut_by_tokens(widths, case.micro_batch, case.tokens, case.data)
        passes += len(cuts) // case.data
        filled += sum(len(cut) * max(widths[cut.start : cut.stop]) for cut in cuts)
    return passes / len(steps), filled / steps.size


def _multiples(table: PlanTable) -> Counts:
    """Returns the tokens to a multiple of which rows are padded; 1 if only ranks need a multiple.

    A model is traced on rows that its ranks can split.
    """
    multiple = table.column("pad_multiple").astype(np.int64)
    parts = ("sequence_parallel", "tensor", "context")
    splits, tensor, context = (table.column(name).astype(np.int64) for name in parts)
    ranks = np.where(splits > 0, tensor, context)
    return np.where(multiple > 1, np.lcm(multiple, ranks), 1)


def _rounded(tokens: Counts | int, multiple: Counts | int) -> Counts:
    return np.asarray(-(-tokens // multiple) * multiple)


@functools.lru_cache(maxsize=4096)
def _row_tokens(lengths: tuple[int, ...], most: int, case: _Case) -> float:
    """Returns the mean tokens per sample in rows of at most `most`, including padding."""
    steps = _steps(lengths, case.samples)
    match case.batching:
        case "padded":
            longest = steps.reshape(-1, case.micro_batch).max(axis=1)
            return float(_rounded(longest, case.multiple).mean())
        case "grouped":
            longest = -np.sort(-steps, axis=1)[:, :: case.micro_batch]
            return float(_rounded(longest, case.multiple).mean())
        case "packed":
            count = min(case.micro_batch, _MAX_PACKED)
            drawn = max(_PACKED_BATCHES, _PACKED_SAMPLES // count)
            batches = steps.reshape(-1, case.micro_batch)[:drawn, :count].tolist()
            packed = [(pack(batch, most), batch) for batch in batches]
            filled = sum(len(rows) * width(rows, batch) for rows, batch in packed)
            # a ratio, since a few batches say more of the padding than of the lengths
            return float(steps.mean()) * filled / sum(map(sum, batches))


@functools.lru_cache(maxsize=64)
def _steps(lengths: tuple[int, ...], samples: int) -> Counts:
    rng = np.random.default_rng(0)
    steps = min(max(_SAMPLES // samples, _MIN_STEPS), _MAX_STEPS)
    drawn = steps * samples  # an epoch has all lengths evenly, its steps have not
    indices = (np.arange(drawn) + rng.random(drawn)) * len(lengths) / drawn
    return rng.permutation(np.array(lengths)[indices.astype(np.intp)]).reshape(steps, samples)
