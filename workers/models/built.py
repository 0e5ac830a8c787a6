"""A built model, ready to be parallelised and trained."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from search_spaces.errors import DataError
from search_spaces.facts import TargetRule
from search_spaces.specification.schema import SweepSpec, TextTask
from workers.data.batches import BatchSource, DatasetSource, batch_source_of
from workers.data.dataset import load_dataset
from workers.data.user_batches import BatchMaker
from workers.models.deferred_init import InitialValues

PROBE_SAMPLES = (0, 1)  # sample numbers of the batch that probes a model


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module, its repeated blocks, and the source of its batches.

    The module of a transformers model lies on the meta device; `initial.materialise` gives it
    memory and values after the split. The module of a user's function has both already.
    `blocks` are the repeated layers in order, which sharding and recomputation wrap.
    `batch_maker` turns sample numbers into keyword arguments of `module`; it is None if
    Plimsoll's own data feeds the model, for `task`.
    """

    module: nn.Module
    blocks: tuple[nn.Module, ...]
    task: TextTask | None
    vocab_size: int | None
    batch_maker: BatchMaker | None
    initial: InitialValues = field(default_factory=InitialValues)
    tensor_plan: tuple[tuple[str, str], ...] = ()  # patterns and styles; empty: its own plan


def batch_source(model: BuiltModel, spec: SweepSpec, rule: TargetRule | None = None) -> BatchSource:
    """Returns the source of a model's batches: its own batch maker, else the spec's data.

    Args:
        model: The model.
        spec: Names the data.
        rule: What the loss of a user's function is a mean over; None to go by its batches' keys.

    Raises:
        DataError: If the spec's data cannot be read, or the model has neither a batch maker
            nor a vocabulary.
    """
    if model.batch_maker is not None:
        return batch_source_of(model.module, model.batch_maker, rule)
    if model.vocab_size is None or model.task is None:
        raise DataError(f"{spec.model.name} has no vocabulary to draw tokens from")
    dataset = load_dataset(spec.data, spec.train, model.vocab_size)
    return DatasetSource(dataset=dataset, spec=spec, task=model.task)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators inside the context, and restores their states afterwards.

    They are torch's for the CPU, where models are built, and those of NumPy and Python, by which a
    user's function may draw weights: every rank has to draw the same. `torch.manual_seed` would
    also reset the generators of CUDA devices, which `fork_rng` without devices does not restore.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
