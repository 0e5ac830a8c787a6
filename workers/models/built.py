"""A model that is ready to be parallelised and trained, whatever it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import nn

from search_spaces.spec.schema import Task
from workers.models.deferred_init import InitialValues

SampleNumbers = tuple[int, ...]


BatchMaker = Callable[[SampleNumbers], Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module, its repeated blocks, and what its batches look like.

    The module of a transformers model lies on the meta device: whoever splits it has the rest
    given its values by `initial.materialise`. That of a function of the user's is real.
    `blocks` are the repeated layers in order, which sharding and checkpointing wrap.
    `batch_maker` is None where Plimsoll's own data feeds the model; else it turns the numbers
    of samples into the keyword arguments of `module`.
    """

    module: nn.Module
    blocks: tuple[nn.Module, ...]
    task: Task
    vocab_size: int | None
    batch_maker: BatchMaker | None
    initial: InitialValues = field(default_factory=InitialValues)
    tensor_plan: tuple[tuple[str, str], ...] = ()  # patterns and styles; nothing: its own plan

    def materialised(self, device: torch.device | None = None) -> Self:
        """This model, whole and with its values, on the CPU or `device`; in place."""
        self.initial.materialise(self.module, device or torch.device("cpu"))
        return self


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws of torch's CPU generator follow from `seed`; afterwards it goes on as before.

    Only the CPU's generator, since models are built there: `torch.manual_seed` would also
    reset those of CUDA devices, which `fork_rng` without devices does not give back.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
