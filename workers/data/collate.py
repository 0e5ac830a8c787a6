"""A micro-batch out of samples: the tensors that one forward pass takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from search_spaces.bins import pack, width
from search_spaces.plan import Batching
from search_spaces.spec.schema import Task
from workers.data.batch import MicroBatch
from workers.data.masking import mask, masked_count
from workers.data.padding import IGNORED, PAD_TOKEN_ID, pad, pad_mask, rounded_up

CLASSES = 2

Tokens = NDArray[np.int32]
Inputs = dict[str, torch.Tensor]


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
