"""The front door of data: the micro-batches of one optimizer step on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from search_spaces.errors import DataError, ModelError
from search_spaces.plan import Batching, Plan
from search_spaces.spec.schema import SweepSpec
from workers.data.arrange import arrange
from workers.data.batch import MicroBatch
from workers.data.collate import Layout, collate, targets_of
from workers.data.dataset import Dataset, load_dataset
from workers.data.order import longest_samples, step_samples
from workers.models.built import BatchMaker, BuiltModel

WORST_STEP = -1  # the step of the longest samples there are


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatches:
    """What one rank trains on in one optimizer step.

    `targets` and `tokens` are of the whole global batch, all ranks: every rank knows them
    without asking the others.
    """

    batches: tuple[MicroBatch, ...]
    targets: int
    tokens: int

    def pin_memory(self) -> Self:
        """A copy in page-locked memory; torch's data loader asks for it by this name."""
        return replace(self, batches=tuple(batch.pin_memory() for batch in self.batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """Batches of Plimsoll's own data."""

    dataset: Dataset
    spec: SweepSpec

    def step(self, plan: Plan, rank: int, step: int) -> StepBatches:
        """The micro-batches of `rank` in optimizer step `step` (0 and up, or WORST_STEP).

        The global batch of a step is the same samples under every plan.
        """
        train, task = self.spec.train, self.spec.model.task
        all_lengths = self.dataset.lengths
        if step == WORST_STEP:
            numbers = longest_samples(all_lengths, plan.global_batch)
        else:
            numbers = step_samples(all_lengths, step, plan.global_batch, train.seed)
        lengths = all_lengths[list(numbers)].tolist()
        layout = self._layout(plan.batching, plan.tensor if plan.sequence_parallel else 1)
        return StepBatches(
            batches=tuple(
                collate(chosen, [self.dataset.sample(number) for number in chosen], layout)
                for chosen in arrange(numbers, lengths, plan)[rank]
            ),
            targets=sum(targets_of(task, length) for length in lengths),
            tokens=sum(lengths),
        )

    def _layout(self, batching: Batching, multiple: int = 1) -> Layout:
        return Layout(
            task=self.spec.model.task,
            batching=batching,
            sequence_length=self.spec.train.sequence_length,
            vocab_size=self.dataset.vocab_size,
            mask_token_id=self.dataset.mask_token_id,
            seed=self.spec.train.seed,
            multiple=multiple,
        )

    def typical(self) -> MicroBatch:
        """One sample whose length is nearest the mean."""
        lengths = self.dataset.lengths
        number = int(abs(lengths - lengths.mean()).argmin())
        return collate([number], [self.dataset.sample(number)], self._layout("padded"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """Batches that the user's function makes; their lengths are not known beforehand.

    Samples are numbered from 0 without end; each counts as one target, as in a loss that is
    the mean over the batch. Every batching is padded, and the worst step is the first.
    """

    batch_maker: BatchMaker

    def step(self, plan: Plan, rank: int, step: int) -> StepBatches:
        """The micro-batches of `rank` in optimizer step `step` (0 and up, or WORST_STEP).

        Tokens of the other ranks are taken to be as many as this one's.
        """
        start = max(step, 0) * plan.global_batch
        numbers = tuple(range(start, start + plan.global_batch))
        in_order = arrange(numbers, [1] * len(numbers), plan)[rank]
        batches = tuple(self._batch(chosen) for chosen in in_order)
        return StepBatches(
            batches=batches,
            targets=plan.global_batch,
            tokens=plan.data * sum(batch.tokens for batch in batches),
        )

    def typical(self) -> MicroBatch:
        """The first sample."""
        return self._batch((0,))

    def _batch(self, numbers: tuple[int, ...]) -> MicroBatch:
        inputs = self.batch_maker(numbers)
        if not isinstance(inputs, Mapping):
            raise ModelError(
                f"the batch maker returned {type(inputs).__name__}, must return a mapping of"
                " the module's keyword arguments to tensors"
            )
        return MicroBatch(
            inputs=inputs, samples=len(numbers), tokens=_tokens(inputs), targets=len(numbers)
        )


BatchSource = DatasetSource | FunctionSource


def batch_source(model: BuiltModel, spec: SweepSpec) -> BatchSource:
    """What feeds `model`: its own batch maker if it has one, else the spec's data.

    Raises:
        DataError: If the spec's data cannot be read.
    """
    if model.batch_maker is not None:
        return FunctionSource(batch_maker=model.batch_maker)
    if model.vocab_size is None:
        raise DataError(f"{spec.model.name} has no vocabulary, so that no tokens can be made")
    return DatasetSource(dataset=load_dataset(spec.data, spec.train, model.vocab_size), spec=spec)


def _tokens(inputs: Mapping[str, torch.Tensor]) -> int:
    """Tokens in the user's batch; where it has no token ids, its samples stand for them."""
    if "attention_mask" in inputs and inputs["attention_mask"].dim() == 2:
        return int(inputs["attention_mask"].sum())
    if "input_ids" in inputs:
        return inputs["input_ids"].numel()
    return max((len(tensor) for tensor in inputs.values() if tensor.dim()), default=1)
