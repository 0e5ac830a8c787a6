"""A micro-batch out of samples: the tensors that one forward pass takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from search_spaces.costs.sequence_packing import pack, width
from search_spaces.plan import Batching
from search_spaces.spec.schema import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The input of one forward pass of one rank.

    `inputs` are the module's keyword arguments; `samples` and `tokens` count what was asked
    for, without padding; `targets` is how many labels the loss is a mean over (its weight
    when micro-batches are added up).
    """

    inputs: Mapping[str, torch.Tensor]
    samples: int
    tokens: int
    targets: int

    def on(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The inputs on a device."""
        return {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}

    def pin_memory(self) -> Self:
        """A copy in page-locked memory, from which CUDA copies without waiting."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.inputs.items()}
        return replace(self, inputs=pinned)


IGNORED = -100  # a label that no loss counts: torch's and transformers' convention
PAD_TOKEN_ID = 0  # what stands there never matters: masks and labels leave it out
_MASKED, _TO_MASK, _TO_RANDOM = 0.15, 0.8, 0.1  # Devlin et al. 2018, arXiv:1810.04805, 3.1
CLASSES = 2
Tokens = NDArray[np.int32]
Inputs = dict[str, torch.Tensor]
_FILLED_WITH = {"input_ids": PAD_TOKEN_ID, "attention_mask": 0, "labels": IGNORED}


def pad(rows: Sequence[NDArray[Any]], value: int, multiple: int = 1) -> torch.Tensor:
    """The rows, filled up with `value` on the right; int64, shape (rows, longest).

    The width is the next multiple of `multiple`.
    """
    width = rounded_up(max(map(len, rows)), multiple)
    padded = np.full((len(rows), width), value, dtype=np.int64)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return torch.from_numpy(padded)


def pad_mask(rows: Sequence[NDArray[Any]], multiple: int = 1) -> torch.Tensor:
    """1 where a row has a token, 0 where it is filled up; int64, shape as that of `pad`."""
    return pad([np.ones(len(row), dtype=np.int64) for row in rows], 0, multiple)


def rounded_up(width: int, multiple: int) -> int:
    """The least multiple of `multiple` that is no less than `width`."""
    return -(-width // multiple) * multiple


def masked_count(length: int) -> int:
    """How many of a sample's tokens are to be guessed: 15 %, at least one."""
    return max(1, round(_MASKED * length))


def mask(
    tokens: Tokens, *, number: int, seed: int, vocab_size: int, mask_token_id: int
) -> tuple[Tokens, Tokens]:
    """The tokens with some hidden, and the labels: the hidden tokens, ignored elsewhere.

    Of the tokens to guess, 80 % become the mask token, 10 % a random one and 10 % stay. What
    is hidden depends on the seed and the sample's number alone, hence on no layout; the count
    on its length alone, so that a step's targets are known without drawing.
    """
    generator = np.random.default_rng([seed, number])
    places = generator.choice(len(tokens), size=masked_count(len(tokens)), replace=False)
    fates = generator.random(len(places))
    labels = np.full_like(tokens, IGNORED)
    labels[places] = tokens[places]
    hidden = tokens.copy()
    hidden[places[fates < _TO_MASK]] = mask_token_id
    replaced = places[(fates >= _TO_MASK) & (fates < _TO_MASK + _TO_RANDOM)]
    hidden[replaced] = generator.integers(0, vocab_size, size=len(replaced))
    return hidden, labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a micro-batch depends on beside its samples; lengths in tokens.

    Rows are filled up to a multiple of `multiple` tokens: ranks can split them evenly.
    """

    task: Task
    batching: Batching
    sequence_length: int
    vocab_size: int
    mask_token_id: int
    seed: int
    multiple: int = 1


def collate(numbers: Sequence[int], samples: Sequence[Tokens], layout: Layout) -> MicroBatch:
    """The micro-batch of these samples, each of 1 to `sequence_length` tokens.

    Rows are as long as the longest needs, not as `sequence_length`. By task:

    - causal-lm: the tokens are their own labels, which the model shifts; the first token of a
      sample is no target. Packed rows have position ids that restart with each sample, and no
      attention mask.
    - masked-lm: see `masking.mask`.
    - sequence-classification: one of two classes for each sample, by its number.
    - seq2seq: the first half of a sample goes to the encoder, the second half is the labels; a
      sample of one token is both.

    Args:
        numbers: Each sample's number, of which masks and classes depend.
        samples: Each sample's tokens.
        layout: Task, batching and what else counts.

    Raises:
        ValueError: If another task than causal-lm is to be packed.
    """
    if layout.batching == "packed":
        if layout.task != "causal-lm":
            raise ValueError(f"only causal-lm samples can be packed, not {layout.task}")
        inputs = _packed(samples, layout)
    else:
        inputs = _padded(numbers, samples, layout)
    lengths = [len(tokens) for tokens in samples]
    return MicroBatch(
        inputs=inputs,
        samples=len(samples),
        tokens=sum(lengths),
        targets=sum(targets_of(layout.task, length) for length in lengths),
    )


def targets_of(task: Task, length: int) -> int:
    """Labels that a sample of `length` tokens adds to the loss."""
    match task:
        case "causal-lm":
            return length - 1
        case "masked-lm":
            return masked_count(length)
        case "seq2seq":
            return length - length // 2
        case "sequence-classification":
            return 1


def _padded(numbers: Sequence[int], samples: Sequence[Tokens], layout: Layout) -> Inputs:
    match layout.task:
        case "causal-lm":
            return _rows(samples, pad(samples, IGNORED, layout.multiple), layout)
        case "masked-lm":
            kinds = [
                mask(
                    tokens,
                    number=number,
                    seed=layout.seed,
                    vocab_size=layout.vocab_size,
                    mask_token_id=layout.mask_token_id,
                )
                for number, tokens in zip(numbers, samples, strict=True)
            ]
            hidden, labels = zip(*kinds, strict=True)
            return _rows(hidden, pad(labels, IGNORED, layout.multiple), layout)
        case "seq2seq":
            # the encoder gets at least one token, the labels what is left
            sources = [tokens[: max(len(tokens) // 2, 1)] for tokens in samples]
            rest = [tokens[len(tokens) // 2 :] for tokens in samples]
            return _rows(sources, pad(rest, IGNORED, layout.multiple), layout)
        case "sequence-classification":
            classes = [np.random.default_rng([layout.seed, n]).integers(CLASSES) for n in numbers]
            return _rows(samples, torch.tensor(np.array(classes, dtype=np.int64)), layout)


def _rows(rows: Sequence[Tokens], labels: torch.Tensor, layout: Layout) -> Inputs:
    return {
        "input_ids": pad(rows, PAD_TOKEN_ID, layout.multiple),
        "attention_mask": pad_mask(rows, layout.multiple),
        "labels": labels,
    }


def _packed(samples: Sequence[Tokens], layout: Layout) -> Inputs:
    """Rows of several samples; what fills a row up is one more, without labels.

    Samples are told apart by position ids that restart, which transformers reads only where
    there is no attention mask. The first label of each sample is ignored, since the model's
    shift would make it the target of the sample before.
    """
    lengths = [len(tokens) for tokens in samples]
    bins = pack(lengths, layout.sequence_length)
    shape = (len(bins), rounded_up(width(bins, lengths), layout.multiple))
    rows: Mapping[str, NDArray[Any]] = {
        "input_ids": np.full(shape, PAD_TOKEN_ID, dtype=np.int64),
        "position_ids": np.zeros(shape, dtype=np.int64),
        "labels": np.full(shape, IGNORED, dtype=np.int64),
    }
    for row, places in enumerate(bins):
        ends = np.cumsum([0, *(lengths[place] for place in places)])
        for place, (start, end) in zip(places, pairwise(ends), strict=True):
            rows["input_ids"][row, start:end] = samples[place]
            rows["labels"][row, start + 1 : end] = samples[place][1:]
            rows["position_ids"][row, start:end] = np.arange(end - start)
        rows["position_ids"][row, ends[-1] :] = np.arange(shape[1] - ends[-1])
    return {name: torch.from_numpy(array) for name, array in rows.items()}


def to_common_shape(batches: Sequence[MicroBatch]) -> tuple[MicroBatch, ...]:
    """The micro-batches of a step with as many rows and columns as the largest of each.

    What is added has no labels and is attended to by no sample: it is masked, or in packed rows
    a sample of its own. So no loss changes.

    Args:
        batches: Of Plimsoll's own data.
    """
    rows, columns = (
        max(batch.inputs["input_ids"].shape[dimension] for batch in batches) for dimension in (0, 1)
    )
    return tuple(
        replace(
            batch,
            inputs={
                name: _filled(name, tensor, rows, columns) for name, tensor in batch.inputs.items()
            },
        )
        for batch in batches
    )


def _filled(name: str, tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A tensor of rows of tokens; one of a number for each row has no columns to fill."""
    shape = (rows, columns)[: tensor.dim()]
    if tensor.shape == shape:
        return tensor
    if name == "position_ids":  # what is added to a row is one more sample, as are rows
        kept, added = tensor.shape
        filled = torch.arange(columns).repeat(rows, 1)
        filled[:, added:] -= added
        filled[kept:] = torch.arange(columns)
    else:
        filled = torch.full(shape, _FILLED_WITH[name], dtype=tensor.dtype)
    filled[tuple(slice(size) for size in tensor.shape)] = tensor
    return filled
