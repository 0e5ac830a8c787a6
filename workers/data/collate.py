"""Collation: the tensors of one micro-batch, made from its samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map_only

from search_spaces.costs.sequence_packing import pack, width
from search_spaces.plan import Attention, Batching
from search_spaces.specification.schema import TextTask
from workers.plain_torch.loss import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The input of one forward pass of one rank.

    `inputs` are the module's keyword arguments. `samples` and `tokens` leave padding out.
    `targets` is the micro-batch's weight in the loss of a step: the number of labels that its loss
    averages over, or the sum of their weights. `longest` is set for packed rows of flash
    attention: no sample has more tokens, those of padding included.
    """

    inputs: Mapping[str, Any]
    samples: int
    tokens: int
    targets: float
    longest: int | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The module's keyword arguments: the inputs, and bounds that are plain numbers."""
        bounds = {} if self.longest is None else dict.fromkeys(LONGEST, self.longest)
        return {**self.inputs, **bounds}

    def on(self, device: torch.device) -> dict[str, Any]:
        """Returns the module's keyword arguments, tensors on a device."""
        moved: dict[str, Any] = on_device(self.inputs, device)
        return self.arguments | moved

    def pin_memory(self) -> Self:
        """Returns a copy in page-locked memory, from which CUDA copies asynchronously."""
        return replace(
            self, inputs=tree_map_only(torch.Tensor, torch.Tensor.pin_memory, self.inputs)
        )


IGNORED = -100  # a label that no loss counts: torch's and transformers' convention
PAD_TOKEN_ID = 0  # any token would do: masks and labels leave padding out
_MASKED, _TO_MASK, _TO_RANDOM = 0.15, 0.8, 0.1  # Devlin et al. 2018, arXiv:1810.04805, 3.1
CLASSES = 2
Tokens = NDArray[np.int32]
Inputs = dict[str, torch.Tensor]
CONTEXT = "context_positions"  # of whole rows; `workers.plain_torch.context` takes it away
STARTS, LONGEST = ("cu_seq_lens_q", "cu_seq_lens_k"), ("max_length_q", "max_length_k")
_PADDING = {"input_ids": PAD_TOKEN_ID, "attention_mask": 0, "labels": IGNORED}


def pad(rows: Sequence[NDArray[Any]], value: int, multiple: int = 1) -> torch.Tensor:
    """Pads rows on the right with `value`; int64, shape (rows, longest).

    The width is rounded up to a multiple of `multiple`.
    """
    width = round_up(max(map(len, rows)), multiple)
    padded = np.full((len(rows), width), value, dtype=np.int64)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return torch.from_numpy(padded)


def round_up(width: int, multiple: int) -> int:
    """Rounds `width` up to a multiple of `multiple`."""
    return -(-width // multiple) * multiple


def masked_count(length: int) -> int:
    """Returns the number of a sample's tokens to predict: 15 %, at least one."""
    return max(1, round(_MASKED * length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Settings of a micro-batch, apart from its samples; lengths in tokens.

    Rows are padded to a multiple of `multiple` tokens: fewer widths, and ranks split them evenly.
    """

    task: TextTask
    batching: Batching
    sequence_length: int
    vocab_size: int
    mask_token_id: int
    seed: int
    multiple: int = 1
    attention: Attention = "sdpa"


def mask(tokens: Tokens, number: int, layout: Layout) -> tuple[Tokens, Tokens]:
    """Hides some tokens for masked language modelling.

    Of the tokens to predict, 80 % become the mask token, 10 % a random one and 10 % stay. The
    choice depends only on the seed and the sample's number, not on its rows. The count
    depends only on the length, so that a step's targets are known without drawing.

    Returns:
        The tokens with some hidden, and the labels, ignored except at the tokens to predict.
    """
    generator = np.random.default_rng([layout.seed, number])
    positions = generator.choice(len(tokens), size=masked_count(len(tokens)), replace=False)
    draws = generator.random(len(positions))
    labels = np.full_like(tokens, IGNORED)
    labels[positions] = tokens[positions]
    hidden = tokens.copy()
    hidden[positions[draws < _TO_MASK]] = layout.mask_token_id
    replaced = positions[(draws >= _TO_MASK) & (draws < _TO_MASK + _TO_RANDOM)]
    hidden[replaced] = generator.integers(0, layout.vocab_size, size=len(replaced))
    return hidden, labels


def collate(numbers: Sequence[int], samples: Sequence[Tokens], layout: Layout) -> MicroBatch:
    """Makes the micro-batch of some samples, each of 1 to `sequence_length` tokens.

    Rows are as long as the longest one, up to a multiple, not as `sequence_length`. By task:

    - causal-lm: the tokens are their own labels, which the model shifts; the first token of a
      sample is not a target. Packed rows have position ids that restart with each sample, and
      no attention mask; for flash attention also where each sample starts.
    - masked-lm: see `mask`.
    - sequence-classification: one of two classes for each sample, by its number.
    - seq2seq: the first half of a sample goes to the encoder, the second half is the labels; a
      sample of one token is both.

    Args:
        numbers: Each sample's number, which decides its mask and class.
        samples: Each sample's tokens.
        layout: Task, batching and other settings.
    """
    if layout.batching == "packed":
        inputs = _packed(samples, layout)
    else:
        inputs = _padded(numbers, samples, layout)
    lengths = [len(tokens) for tokens in samples]
    longest = None
    if layout.batching == "packed" and layout.attention.startswith("flash"):
        # the same for all micro-batches, so that none is compiled for
        longest = round_up(layout.sequence_length, layout.multiple)
        inputs |= dict.fromkeys(STARTS, sample_starts(inputs["position_ids"]))
    return MicroBatch(
        inputs=inputs,
        samples=len(samples),
        tokens=sum(lengths),
        targets=sum(target_count(layout.task, length) for length in lengths),
        longest=longest,
    )


def sample_starts(position_ids: torch.Tensor) -> torch.Tensor:
    """Returns where each packed sample starts, counted over all rows, and where the last one ends.

    Flash attention reads position ids of a single row alone, and with a wait for the device in
    each layer; of several rows it would mix the samples.

    Source:
        transformers/modeling_flash_attention_utils.py (5.23), `_flash_attention_forward`: with
        `cu_seq_lens_q` and its kin, it lays all rows behind each other.
    """
    starts = (position_ids.flatten() == 0).nonzero().flatten()
    return torch.cat([starts, starts.new_tensor([position_ids.numel()])]).int()


def part_of_tokens(batch: MicroBatch, part: int, parts: int) -> MicroBatch:
    """Returns one of equal parts of the columns of a causal language model's micro-batch.

    Its labels are shifted already: the last one is the first token of the next part. The mask hides
    nothing, as no token sees the padding behind it.

    Args:
        batch: Padded or packed rows.
        part: Number of the part.
        parts: Their number; with 1 the micro-batch is returned as it is.

    Raises:
        ValueError: If columns are not a multiple of `parts`, or padding is on the left.
    """
    if parts == 1:
        return batch
    inputs = dict(batch.inputs)
    tokens, labels, mask = inputs["input_ids"], inputs["labels"], inputs.get("attention_mask")
    if tokens.shape[1] % parts:
        raise ValueError(f"rows of {tokens.shape[1]} tokens cannot be divided over {parts} ranks")
    if mask is not None and (mask.diff(dim=1) > 0).any():
        raise ValueError("rows are padded on the left; context ranks need padding on the right")
    rows = inputs.get("position_ids")
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    positions = columns.expand_as(tokens) if rows is None else rows
    shifted = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    mine = slice(part * tokens.shape[1] // parts, (part + 1) * tokens.shape[1] // parts)
    own = shifted[:, mine].contiguous()
    count, all_counts = ((one != IGNORED).sum().item() for one in (own, shifted))
    if not count:
        own[:, 0] = PAD_TOKEN_ID  # a mean over no label would be NaN; this one has no weight
    inputs |= {
        "input_ids": tokens[:, mine],
        "position_ids": positions[:, mine],
        "attention_mask": torch.ones_like(tokens[:, mine]),
        "labels": own,
        "shift_labels": own,
        CONTEXT: positions if rows is not None else positions[:1],
    }
    return replace(batch, inputs=inputs, targets=batch.targets * count / max(all_counts, 1))


def target_count(task: TextTask, length: int) -> int:
    """Returns the number of labels that a sample of `length` tokens adds to the loss."""
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
            pairs = zip(samples, numbers, strict=True)
            masked = [mask(tokens, number, layout) for tokens, number in pairs]
            hidden, labels = zip(*masked, strict=True)
            return _rows(hidden, pad(labels, IGNORED, layout.multiple), layout)
        case "seq2seq":
            sources = [tokens[: max(len(tokens) // 2, 1)] for tokens in samples]
            targets = [tokens[len(tokens) // 2 :] for tokens in samples]
            return _rows(sources, pad(targets, IGNORED, layout.multiple), layout)
        case "sequence-classification":
            classes = [np.random.default_rng([layout.seed, n]).integers(CLASSES) for n in numbers]
            return _rows(samples, torch.tensor(np.array(classes, dtype=np.int64)), layout)


def _rows(rows: Sequence[Tokens], labels: torch.Tensor, layout: Layout) -> Inputs:
    return {
        "input_ids": pad(rows, PAD_TOKEN_ID, layout.multiple),
        "attention_mask": pad([np.ones_like(row) for row in rows], 0, layout.multiple),
        "labels": labels,
    }


def _packed(samples: Sequence[Tokens], layout: Layout) -> Inputs:
    """Packs samples into rows; the padding of a row is one more sample, without labels.

    Position ids that restart separate the samples; transformers reads them only if there is
    no attention mask. The first label of each sample is ignored, since the model's shift would
    make it the target of the sample before.
    """
    lengths = [len(tokens) for tokens in samples]
    bins = pack(lengths, layout.sequence_length)
    shape = (len(bins), round_up(width(bins, lengths), layout.multiple))
    rows: Mapping[str, NDArray[Any]] = {
        "input_ids": np.full(shape, PAD_TOKEN_ID, dtype=np.int64),
        "position_ids": np.zeros(shape, dtype=np.int64),
        "labels": np.full(shape, IGNORED, dtype=np.int64),
    }
    for row, indices in enumerate(bins):
        bounds = np.cumsum([0, *(lengths[index] for index in indices)])
        for index, (start, end) in zip(indices, pairwise(bounds), strict=True):
            rows["input_ids"][row, start:end] = samples[index]
            rows["labels"][row, start + 1 : end] = samples[index][1:]
            rows["position_ids"][row, start:end] = np.arange(end - start)
        rows["position_ids"][row, bounds[-1] :] = np.arange(shape[1] - bounds[-1])
    return {name: torch.from_numpy(array) for name, array in rows.items()}


def pad_to_common_shape(batches: Sequence[MicroBatch]) -> tuple[MicroBatch, ...]:
    """Pads the micro-batches of a step to the most rows and the most columns among them.

    The padding has no labels, and no sample attends to it: it is masked, or a separate sample
    in packed rows. So no loss changes.

    Args:
        batches: Micro-batches of Plimsoll's own data.
    """
    rows, columns = (
        max(batch.inputs["input_ids"].shape[dimension] for batch in batches) for dimension in (0, 1)
    )
    return tuple(
        replace(
            batch,
            inputs={
                name: _padded_to(name, tensor, rows, columns)
                for name, tensor in batch.inputs.items()
            },
        )
        for batch in batches
    )


def _padded_to(name: str, tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    shape = (rows, columns)[: tensor.dim()]  # a tensor with one number per row has no columns
    if tensor.shape == shape:
        return tensor
    if name == "position_ids":  # the padding of a row is one more sample, as are added rows
        old_rows, old_columns = tensor.shape
        padded = torch.arange(columns).repeat(rows, 1)
        padded[:, old_columns:] -= old_columns
        padded[old_rows:] = torch.arange(columns)
    else:
        padded = torch.full(shape, _PADDING[name], dtype=tensor.dtype)
    padded[tuple(slice(size) for size in tensor.shape)] = tensor
    return padded
