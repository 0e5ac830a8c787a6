"""How much of a micro-batch is computed where samples differ in length.

A model is traced on samples of the longest length. What a micro-batch of others computes are the
tokens of its rows: padded ones are as long as the longest sample in them, packed ones hold several
samples. That share of the traced work is here, by how a step's samples are drawn (one of each
stratum of lengths) and dealt (`workers.data.batches`, `arrange`, `collate`).
"""

from __future__ import annotations

import functools

import numpy as np

from search_spaces.bins import pack, width
from search_spaces.footprint import Footprint
from search_spaces.forecast.executions import Counts, Numbers
from search_spaces.plan import Batching
from search_spaces.plan_table import PlanTable

_DRAWN = 8192  # samples that are drawn to know a mean,
_FEWEST, _MOST = 8, 256  # in so many steps
_PACKED = 64  # micro-batches that are packed
_MOST_PACKED = 256  # samples of a micro-batch beyond which rows are as full as they get


def filled_of(table: PlanTable, footprint: Footprint) -> Numbers:
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
