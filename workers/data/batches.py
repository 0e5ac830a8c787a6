"""Batch sources: the micro-batches of one optimizer step on one rank."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from search_spaces.costs.sequence_packing import cut_by_tokens
from search_spaces.facts import SAMPLES, TargetRule
from search_spaces.plan import Attention, Batching, Plan
from search_spaces.specification.schema import SweepSpec, TextTask
from workers.data.collate import (
    Layout,
    MicroBatch,
    collate,
    part_of_tokens,
    round_up,
    target_count,
)
from workers.data.dataset import Dataset
from workers.data.user_batches import (
    ONE,
    BatchMaker,
    SampleNumbers,
    assumed_rule,
    batch_tensors,
    module_inputs,
    takes_targets,
    target_weight,
)
from workers.process_groups import sum_over_ranks

Lengths = NDArray[np.int32]
WORST_STEP = -1  # the step that takes the longest samples


def deal_samples(
    numbers: SampleNumbers,
    lengths: Sequence[int],
    plan: Plan,
    multiple: int = 1,
    *,
    evenly: bool = True,
) -> tuple[tuple[SampleNumbers, ...], ...]:
    """Deals the samples of one optimizer step to ranks and micro-batches.

    Padded and packed batching keep the data order. Grouped batching sorts the samples by
    length, longest first, so that a micro-batch needs little padding. Ranks then get samples of
    similar length at the same time, so that none waits long for another. Their order reverses
    with each micro-batch, so that no rank always has the longest.

    Args:
        numbers: The samples of the step, in data order.
        lengths: Tokens of each of `numbers`.
        plan: Sets the number of ranks and micro-batches, and the batching.
        multiple: Tokens to a multiple of which rows are padded.
        evenly: False to fill micro-batches up to the plan's tokens: see `cut_by_tokens`.

    Returns:
        For each group of context ranks, for each micro-batch, the numbers of its samples.
    """
    order = np.arange(len(numbers))
    if plan.batching == "grouped":
        order = np.argsort(-np.asarray(lengths), kind="stable")
    chunks = order.reshape(-1, plan.micro_batch).tolist()
    if limit := plan.micro_batch_tokens:
        widths = [round_up(lengths[index], multiple) for index in order.tolist()]
        cuts = cut_by_tokens(widths, plan.micro_batch, limit, plan.sample_ranks, evenly=evenly)
        chunks = [order[cut.start : cut.stop].tolist() for cut in cuts]
    dealt = _turned(np.arange(len(chunks)).reshape(-1, plan.sample_ranks), plan)
    return tuple(
        tuple(tuple(numbers[index] for index in chunks[chunk]) for chunk in rank)
        for rank in dealt.T.tolist()
    )


def _turned(dealt: NDArray[Any], plan: Plan) -> NDArray[Any]:
    """Reverses the order of ranks in each second micro-batch of grouped batching."""
    if plan.batching == "grouped":
        dealt[1::2] = dealt[1::2, ::-1].copy()
    return dealt


def step_samples(lengths: Lengths, step: int, global_batch: int, seed: int) -> tuple[int, ...]:
    """Returns the samples of an optimizer step: `global_batch` numbers, as a shuffled loader draws.

    Each epoch is a new permutation of all samples, without those that fill no whole step. Epochs
    follow each other without end. With fewer samples than `global_batch`, samples repeat within a
    step.

    Args:
        lengths: Tokens of each sample.
        step: Optimizer step, counted from 0.
        global_batch: Samples per optimizer step.
        seed: Of the order.
    """
    epoch, index = divmod(step, _steps_per_epoch(len(lengths), global_batch))
    return tuple(_epoch(len(lengths), global_batch, seed, epoch)[index].tolist())


def excess_tokens(lengths: Lengths, step: int, plan: Plan, multiple: int, seed: int) -> float:
    """Returns what a step has to compute beyond the mean step of its epoch, in tokens.

    The tokens are those of the rank with most, with padding; packed rows count without. If tokens
    limit micro-batches, they are the mean over ranks, without padding.

    Args:
        lengths: Tokens of each sample.
        step: Optimizer step, counted from 0.
        plan: Sets how samples are dealt and arranged.
        multiple: Tokens to a multiple of which rows are padded.
        seed: Of the order.
    """
    epoch, index = divmod(step, _steps_per_epoch(len(lengths), plan.global_batch))
    work = _epoch_work(lengths.astype(np.int32).tobytes(), plan, multiple, seed, epoch)
    return float(work[index] - work.mean())


@lru_cache(maxsize=4)
def _epoch_work(
    length_bytes: bytes, plan: Plan, multiple: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Returns `excess_tokens` of each step of an epoch, without the mean taken off."""
    lengths = np.frombuffer(length_bytes, dtype=np.int32).astype(np.int64)
    steps = lengths[_epoch(len(lengths), plan.global_batch, seed, epoch)]
    if plan.micro_batch_tokens:
        return steps.sum(axis=1) // plan.sample_ranks
    if plan.batching == "grouped":
        steps = -np.sort(-steps, axis=1)
    dealt = steps.reshape(len(steps), plan.accumulation, plan.sample_ranks, plan.micro_batch)
    if plan.batching == "packed":
        tokens = dealt.sum(axis=-1)
    else:
        tokens = plan.micro_batch * -(-dealt.max(axis=-1) // multiple) * multiple
    return _turned(tokens.transpose(1, 2, 0), plan).sum(axis=0).max(axis=0)


def longest_samples(lengths: Lengths, global_batch: int) -> tuple[int, ...]:
    """Returns the `global_batch` longest samples, longest first: the worst case of a step.

    With fewer samples than `global_batch`, they repeat.
    """
    longest = np.argsort(-lengths.astype(np.int64), kind="stable")[:global_batch]
    # repeats of a sample follow each other, so that the longest share one micro-batch
    indices = np.sort(np.resize(np.arange(len(longest)), global_batch))
    return tuple(longest[indices].tolist())


def _steps_per_epoch(samples: int, global_batch: int) -> int:
    return max(samples // global_batch, 1)


@lru_cache(maxsize=4)
def _epoch(samples: int, global_batch: int, seed: int, epoch: int) -> NDArray[np.int32]:
    """Returns the samples of each step of an epoch, shape (steps, global_batch)."""
    order = np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int32)
    return np.resize(order, (_steps_per_epoch(samples, global_batch), global_batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatches:
    """The micro-batches of one rank in one optimizer step.

    `excess` is work beyond that of a mean step (`excess_tokens`), 0 where lengths are unknown.
    `targets` (see `MicroBatch`) and `tokens` count the whole global batch, over all ranks: every
    rank knows them without communication, unless `targets_of_rank` says that `targets` are those of
    this rank.
    """

    batches: tuple[MicroBatch, ...]
    targets: float
    tokens: int
    targets_of_rank: bool = False
    excess: float = 0.0

    def counted_over(
        self, plan: Plan, group: dist.ProcessGroup | None, device: torch.device
    ) -> Self:
        """Returns the step with the targets of all ranks, which call this together.

        Args:
            plan: Tensor and pipeline ranks have the same samples.
            group: All ranks of the plan; None for a single one.
            device: Device of the communication.
        """
        if not self.targets_of_rank:
            return self
        (summed,) = sum_over_ranks([self.targets], group, device)
        targets = summed / (plan.tensor * plan.pipeline) or 1.0
        return replace(self, targets=targets, targets_of_rank=False)

    def pin_memory(self) -> Self:
        """Returns a copy in page-locked memory; torch's data loader calls it by this name."""
        return replace(self, batches=tuple(batch.pin_memory() for batch in self.batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """Batches of Plimsoll's own data."""

    dataset: Dataset
    spec: SweepSpec
    task: TextTask

    def step(self, plan: Plan, rank: int, step: int) -> StepBatches:
        """Returns the micro-batches of `rank` in optimizer step `step` (0 and up, or WORST_STEP).

        The global batch of a step has the same samples under every plan.
        """
        train = self.spec.train
        all_lengths = self.dataset.lengths
        split = plan.tensor if plan.sequence_parallel else plan.context
        multiple = math.lcm(plan.pad_multiple, split)
        worst = step == WORST_STEP
        if worst:
            numbers, excess = longest_samples(all_lengths, plan.global_batch), 0.0
        else:
            numbers = step_samples(all_lengths, step, plan.global_batch, train.seed)
            excess = excess_tokens(all_lengths, step, plan, multiple, train.seed)
        lengths = all_lengths[list(numbers)].tolist()
        layout = self._layout(plan.batching, multiple, plan.attention)
        dealt = deal_samples(numbers, lengths, plan, multiple, evenly=not worst)
        place, part = divmod(rank, plan.context)
        batches = (
            collate(group, [self.dataset.sample(number) for number in group], layout)
            for group in dealt[place]
        )
        return StepBatches(
            batches=tuple(part_of_tokens(batch, part, plan.context) for batch in batches),
            targets=sum(target_count(self.task, length) for length in lengths),
            tokens=sum(lengths),
            excess=excess,
        )

    def _layout(
        self, batching: Batching, multiple: int = 1, attention: Attention = "sdpa"
    ) -> Layout:
        return Layout(
            task=self.task,
            batching=batching,
            sequence_length=self.spec.train.sequence_length,
            vocab_size=self.dataset.vocab_size,
            mask_token_id=self.dataset.mask_token_id,
            seed=self.spec.train.seed,
            multiple=multiple,
            attention=attention,
        )

    def typical(self) -> MicroBatch:
        """Returns a batch of one sample, the one with the length nearest the mean."""
        lengths = self.dataset.lengths
        number = int(abs(lengths - lengths.mean()).argmin())
        return collate([number], [self.dataset.sample(number)], self._layout("padded"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """Batches of the user's function, whose lengths are unknown in advance.

    Samples are numbered from 0 without end. Every batching counts as padded, and the worst step is
    the first. `rule` says what the loss is a mean over, as the probe found it; without one the keys
    of a batch do, and `shifts_labels` for causal language models of transformers.
    """

    batch_maker: BatchMaker
    rule: TargetRule | None = None
    shifts_labels: bool = False
    takes_targets: bool = False  # the module does, as an argument

    def step(self, plan: Plan, rank: int, step: int) -> StepBatches:
        """Returns the micro-batches of `rank` in optimizer step `step` (0 and up, or WORST_STEP).

        The other ranks are taken to have as many tokens as this one.
        """
        start = max(step, 0) * plan.global_batch
        numbers = tuple(range(start, start + plan.global_batch))
        groups = deal_samples(numbers, [1] * len(numbers), plan)[rank]
        batches, rules = zip(*(self.batch(group) for group in groups), strict=True)
        known = {SAMPLES: float(plan.global_batch), ONE: 1.0}.get(rules[0])
        return StepBatches(
            batches=batches,
            targets=sum(batch.targets for batch in batches) if known is None else known,
            tokens=plan.data * sum(batch.tokens for batch in batches),
            targets_of_rank=known is None,  # by the keys of batches, which all ranks have alike
        )

    def typical(self) -> MicroBatch:
        """Returns a batch of the first sample."""
        return self.batch((0,))[0]

    def entries(self, numbers: SampleNumbers) -> dict[str, Any]:
        """Returns all that the batch maker returns for some samples, in tensors."""
        return batch_tensors(self.batch_maker(numbers))

    def rule_of(self, entries: Mapping[str, Any]) -> TargetRule:
        """Returns the rule that gives a batch its targets."""
        return self.rule or assumed_rule(
            entries, shifts_labels=self.shifts_labels, takes_targets=self.takes_targets
        )

    def batch(self, numbers: SampleNumbers) -> tuple[MicroBatch, TargetRule]:
        """Returns a micro-batch, and the rule that gives its targets."""
        entries = self.entries(numbers)
        rule = self.rule_of(entries)
        batch = MicroBatch(
            inputs=module_inputs(entries, takes_targets=self.takes_targets),
            samples=len(numbers),
            tokens=_tokens(entries, len(numbers)),
            targets=target_weight(rule, entries, len(numbers)),
        )
        return batch, rule


BatchSource = DatasetSource | FunctionSource


def batch_source_of(
    module: nn.Module, batch_maker: BatchMaker, rule: TargetRule | None = None
) -> FunctionSource:
    """Returns the source of batches for a module of the user's."""
    return FunctionSource(
        batch_maker=batch_maker,
        rule=rule,
        shifts_labels=is_causal_lm(module),
        takes_targets=takes_targets(module),
    )


def is_causal_lm(module: nn.Module) -> bool:
    """Returns True for a causal language model of transformers."""
    if not hasattr(module, "config"):
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return type(module).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _tokens(entries: Mapping[str, Any], samples: int) -> int:
    mask, ids = entries.get("attention_mask"), entries.get("input_ids")
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        return int(mask.sum())
    # a batch without token ids counts its samples
    return ids.numel() if isinstance(ids, torch.Tensor) else samples
