"""Profile of a data set: digest, size and how long its samples are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from search_spaces.provenance import DataProfile, LengthBin
from search_spaces.spec.schema import DataSpec
from workers.data.dataset import Dataset

_DIGEST_CHARACTERS = 16  # MLflow's stores take 36, and its page shows them all
_MOST_BINS = 32


def profile(dataset: Dataset, data: DataSpec) -> DataProfile:
    """Describes the samples of a data set, in a fraction of a second for the largest one.

    Args:
        dataset: As it is trained on, cut at the sequence length.
        data: Where it comes from.
    """
    digest = hashlib.sha256(dataset.offsets.tobytes())
    digest.update(dataset.tokens.data)
    return DataProfile(
        name=_name(data),
        digest=digest.hexdigest()[:_DIGEST_CHARACTERS],
        files=tuple(str(Path(file).expanduser().absolute()) for file in data.files),
        tokenizer=data.tokenizer or "",
        samples=len(dataset),
        tokens=int(dataset.offsets[-1]),
        histogram=_histogram(dataset),
    )


def _name(data: DataSpec) -> str:
    if not data.files:
        return {"lengths": "synthetic-lengths", "fixed": "synthetic"}.get(data.kind, data.kind)
    first, others = Path(data.files[0]).name, len(data.files) - 1
    return f"{first} and {others} more" if others else first


def _histogram(dataset: Dataset) -> tuple[LengthBin, ...]:
    """Each length by itself where they are few, else bins of equal width."""
    lengths, counts = np.unique(dataset.lengths, return_counts=True)
    if len(lengths) <= _MOST_BINS:
        pairs = zip(lengths.tolist(), counts.tolist(), strict=True)
        return tuple(LengthBin(shortest=at, longest=at, samples=count) for at, count in pairs)
    low, high = int(lengths[0]), int(lengths[-1]) + 1
    edges = np.unique(np.linspace(low, high, _MOST_BINS + 1).round().astype(int))
    binned, _ = np.histogram(dataset.lengths, bins=edges)
    return tuple(
        LengthBin(shortest=int(start), longest=int(end) - 1, samples=int(count))
        for start, end, count in zip(edges[:-1], edges[1:], binned, strict=True)
        if count
    )
