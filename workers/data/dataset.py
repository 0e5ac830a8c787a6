"""Data sets: samples of tokens in memory, and their profile."""

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import DataError
from search_spaces.facts import DataProfile, DataReading, LengthBin
from search_spaces.safety.files import file_stamp
from search_spaces.specification.schema import DataSpec
from search_spaces.specification.sections import TrainSpec
from workers.data.text import read_texts
from workers.data.tokenization import TEMPLATE_FILES, chat_template, encode

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


LEAST_TOKENS = 2  # a sample of one token has nothing to predict
_DIGEST_CHARACTERS = 16  # MLflow stores up to 36, and its page shows all of them
_MOST_BINS = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Samples with `LEAST_TOKENS` tokens or more, up to the sequence length.

    Sample `i` is `tokens[offsets[i]:offsets[i + 1]]`. The arrays are read-only.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]  # one more than samples
    lengths: NDArray[np.int32]
    vocab_size: int  # of the model
    mask_token_id: int  # replaces a hidden token in masked language modelling
    reading: DataReading | None = None  # None if the samples are generated

    def __len__(self) -> int:
        return len(self.lengths)

    def sample(self, number: int) -> NDArray[np.int32]:
        """Returns the tokens of a sample."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]


def load_dataset(data: DataSpec, train: TrainSpec, vocab_size: int) -> Dataset:
    """Loads the samples that the spec describes, each cut at `train.sequence_length` tokens.

    The same spec and files give the same data set in every process, which makes it only once.
    Text beyond a bound is thinned out evenly (see `text.read_texts`). Generated samples fill a
    bound of tokens (see `draw_samples`).

    Raises:
        DataError: If a file cannot be read, a tokenizer does not fit the model, or no sample
            has `LEAST_TOKENS` tokens.
    """
    tokenizer = [Path(name) for name in (data.tokenizer,) if name is not None]
    beside = [path.parent / name for path in tokenizer for name in TEMPLATE_FILES]
    paths = (*map(Path, data.files), *tokenizer, *beside)
    stamps = tuple((str(path.absolute()), *file_stamp(path)) for path in paths)
    train_values = (train.sequence_length, train.global_batch, train.seed)
    return _load(data.model_dump_json(), train_values, vocab_size, stamps)


@lru_cache(maxsize=2)
def _load(
    data_json: str,
    train: tuple[int, int, int],
    vocab_size: int,
    _stamps: tuple[tuple[str, int, int], ...],
) -> Dataset:
    data = DataSpec.model_validate_json(data_json)
    sequence_length, global_batch, seed = train
    if sequence_length < LEAST_TOKENS:
        raise DataError(
            f"train.sequence_length is {sequence_length}, must be {LEAST_TOKENS} or more: a sample"
            " needs a token to predict"
        )
    if data.kind != "text":
        samples = draw_samples(
            data, sequence_length, least=global_batch, vocab_size=vocab_size, seed=seed
        )
        return _assemble(samples, vocab_size, vocab_size - 1)
    return _tokenized(data, sequence_length, vocab_size)


def _tokenized(data: DataSpec, sequence_length: int, vocab_size: int) -> Dataset:
    read = read_texts(data, sequence_length, chat_template(data.tokenizer))
    if read.tokens:
        mask, encoded = vocab_size - 1, iter(_below(vocab_size, read.tokens, data))
    else:
        special = read.reading.chat != "template"
        encoded, mask = encode(data.tokenizer, read.texts, vocab_size, special=special)
    samples, cut = [], 0
    for tokens in encoded:
        cut += len(tokens) > sequence_length
        samples.append(np.array(tokens[:sequence_length], dtype=np.int32))
    short = sum(len(tokens) < LEAST_TOKENS for tokens in samples)
    skipped = (*read.reading.skipped, *((("one token", short),) if short else ()))
    reading = replace(read.reading, cut=cut, skipped=skipped)
    return _assemble(samples, vocab_size, mask, reading)


def _below(vocab_size: int, samples: list[list[int]], data: DataSpec) -> list[list[int]]:
    least, most = min(map(min, samples)), max(map(max, samples))
    if least < 0 or most >= vocab_size:
        raise DataError(
            f"{', '.join(data.files)} has tokens from {least} to {most}, the model's vocab_size is"
            f" {vocab_size}: they must be from 0 to {vocab_size - 1}"
        )
    return samples


def _assemble(
    samples: list[NDArray[np.int32]],
    vocab_size: int,
    mask_token_id: int,
    reading: DataReading | None = None,
) -> Dataset:
    usable = [tokens for tokens in samples if len(tokens) >= LEAST_TOKENS]
    if not usable:
        raise DataError(
            f"data has no sample of {LEAST_TOKENS} tokens or more (samples in total:"
            f" {len(samples)}); at least one is needed"
        )
    lengths = np.array([len(tokens) for tokens in usable], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tokens = np.concatenate(usable)
    for array in (tokens, offsets, lengths):
        array.flags.writeable = False
    return Dataset(
        tokens=tokens,
        offsets=offsets,
        lengths=lengths,
        vocab_size=vocab_size,
        mask_token_id=mask_token_id,
        reading=reading,
    )


def profile(dataset: Dataset, data: DataSpec) -> DataProfile:
    """Describes the samples of a data set, in a fraction of a second for the largest one.

    Args:
        dataset: Samples for training, cut at the sequence length.
        data: The section of the spec that describes the data set.
    """
    digest = hashlib.sha256(dataset.offsets.tobytes())
    digest.update(dataset.tokens.data)
    return DataProfile(
        name=_name(data),
        digest=digest.hexdigest()[:_DIGEST_CHARACTERS],
        files=tuple(str(Path(file).absolute()) for file in data.files),
        tokenizer=data.tokenizer or "",
        samples=len(dataset),
        tokens=int(dataset.offsets[-1]),
        histogram=_histogram(dataset),
        median=int(np.median(dataset.lengths)),
        reading=dataset.reading,
    )


def _name(data: DataSpec) -> str:
    if not data.files:
        return {"lengths": "synthetic-lengths", "fixed": "synthetic"}.get(data.kind, data.kind)
    first, others = Path(data.files[0]).name, len(data.files) - 1
    return f"{first} and {others} more" if others else first


def _histogram(dataset: Dataset) -> tuple[LengthBin, ...]:
    """Returns a bin for each length if they are few, else bins of equal width."""
    lengths = np.unique(dataset.lengths)
    edges = np.union1d(lengths, lengths + 1)
    if len(lengths) > _MOST_BINS:
        edges = np.unique(np.linspace(edges[0], edges[-1], _MOST_BINS + 1).round().astype(int))
    counts, _ = np.histogram(dataset.lengths, bins=edges)
    return tuple(
        LengthBin(shortest=int(start), longest=int(end) - 1, samples=int(count))
        for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    )
