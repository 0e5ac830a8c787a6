"""Synthetic samples: random tokens, of one length or of lengths from a histogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from search_spaces.spec.schema import DataSpec

_MOST_TOKENS = 2**22  # 16 MiB: each rank holds all of them while it measures
_MOST_SAMPLES = 8192
_RESERVED = 1  # token 0 is padding


def draw_samples(
    data: DataSpec, sequence_length: int, *, least: int, vocab_size: int, seed: int
) -> list[NDArray[np.int32]]:
    """Draws samples of uniformly random tokens, with the lengths of `data`.

    The histogram's lengths are cut at `sequence_length`. Without a histogram, every sample has
    `sequence_length` tokens. The samples keep the histogram's shares to within one sample, and
    the longest length occurs. The first token id (padding) and the last (the mask) are never
    drawn.

    Args:
        data: Lengths in tokens, with the share of each.
        sequence_length: Longest sample, in tokens.
        least: Smallest number of samples.
        vocab_size: Of the model.
        seed: Of lengths and tokens.

    Raises:
        DataError: If a length is below 2, or if the vocabulary is below 3.
    """
    if vocab_size < _RESERVED + 2:
        raise DataError(f"the model's vocab_size is {vocab_size}, random tokens need 3 or more")
    histogram = data.lengths or {sequence_length: 1.0}
    if min(histogram) < 2:
        raise DataError(
            "data.lengths has samples of 1 token, must have 2 or more: a sample needs a token to"
            " predict"
        )
    generator = np.random.default_rng([seed, 0])
    lengths = _draw_lengths(histogram, sequence_length, least, generator)
    tokens = generator.integers(_RESERVED, vocab_size - 1, size=lengths.sum(), dtype=np.int32)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def _draw_lengths(
    histogram: dict[int, float], longest: int, least: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    lengths = np.minimum(np.array(sorted(histogram), dtype=np.int64), longest)
    weights = np.array([histogram[length] for length in sorted(histogram)])
    shares = weights / weights.sum()
    fitting = int(_MOST_TOKENS / (lengths * shares).sum())
    count = max(least, min(fitting, _MOST_SAMPLES), len(lengths))
    # quantiles instead of independent draws: the samples keep the histogram's shares
    quantiles = (np.arange(count) + 0.5) / count
    indices = np.searchsorted(np.cumsum(shares), quantiles).clip(max=len(lengths) - 1)
    sample_lengths = lengths[indices]
    sample_lengths[-1] = lengths[-1]
    return generator.permutation(sample_lengths)
