"""What an exported script trains until it has the user's own model and data: what was measured."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

import torch
from torch import nn

from search_spaces.exported import Exported, code_folder, load_exported_spec
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from workers.data import batch_source
from workers.data.batches import WORST_STEP, StepBatches
from workers.importing import users_code
from workers.models import build, build_whole

Step = list[tuple[dict[str, torch.Tensor], float]]


@dataclass(frozen=True, slots=True)
class Reference:
    """The model and the data that a plan was measured with, as plain torch has them."""

    spec: SweepSpec
    plan: Plan

    @classmethod
    def here(cls, script: str) -> Self:
        """Of the folder that an exported script lies in.

        Raises:
            UserError: If what is there is not what was exported, or an input is missing.
        """
        folder = Path(script).resolve().parent
        spec = load_exported_spec(folder)
        if code := code_folder(folder):
            _import_from(code, spec.model.name.partition(":")[0])
        return cls(spec, Exported.read(folder).plan)

    def model(self) -> tuple[nn.Module, list[nn.Module]]:
        """The whole model on the CPU with the weights that trials start from, and its blocks."""
        built = build_whole(self.spec.model, self.spec.train, attention=self.plan.attention)
        return built.module, list(built.blocks)

    def steps(self, rank: int) -> Iterator[Step]:
        """Of each optimizer step, what this data rank trains on: inputs and their weights.

        In the order of a trial, which takes the longest samples first. The weights of all ranks
        add up to 1.
        """
        model = build(self.spec.model, self.spec.train, attention=self.plan.attention)
        source = batch_source(model, self.spec)
        return (_weighted(source.step(self.plan, rank, number)) for number in count(WORST_STEP))


def _import_from(folder: Path, module: str) -> None:
    """Imports a user's module from a folder, whatever the current directory holds of that name."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    with users_code(module):
        importlib.import_module(module)


def _weighted(given: StepBatches) -> Step:
    return [(dict(batch.inputs), batch.targets / given.targets) for batch in given.batches]
