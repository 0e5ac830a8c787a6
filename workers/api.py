"""A model of the user's own under a plan, for a training loop of the user's own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Module

from search_spaces.errors import ClusterError, ModelError
from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.settings.export_manifest import ExportManifest, code_folder, load_exported_spec
from search_spaces.settings.render import render_checkpoint
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import TrialRequest
from workers.data.batches import WORST_STEP, StepBatches, batch_source
from workers.data.collate import MicroBatch
from workers.engines.base import AbstractTraining
from workers.engines.build import build_training, load_engine
from workers.measure.stopwatch import stopwatch_for
from workers.models.built import BuiltModel
from workers.models.load import build, build_whole, describe
from workers.models.stack import find_blocks
from workers.models.user_code import users_code
from workers.parallel.checkpoint import checkpoint_blocks
from workers.parallel.compile import compile_blocks
from workers.process_groups import Ranks, TrialGroup, total
from workers.worker import CONTROL_SECONDS, pick_device

__all__ = ["Applied", "Module", "apply_plan", "prepare_blocks"]

_COLLECTIVE_SECONDS = 1800.0  # longest wait for another rank, as torch has it for gloo
Step = list[tuple[dict[str, torch.Tensor], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A model split, wrapped and sharded by a plan, with the plan's optimizer.

    `rank` is this process's. Ranks of one `data_rank`, of the `data` there are, take the same
    samples: those that split a block or the stack of blocks. `training` is the engine's own.
    """

    plan: Plan
    rank: int
    data_rank: int
    device: torch.device
    training: AbstractTraining
    ranks: Ranks

    @property
    def data(self) -> int:
        """Data-parallel ranks: parts that a global batch is dealt to."""
        return self.plan.data

    def step(
        self, batches: Sequence[Mapping[str, torch.Tensor]], targets: Sequence[int] | None = None
    ) -> float:
        """One optimizer step, which all ranks take together.

        Args:
            batches: For each of the plan's `accumulation` passes the model's keyword arguments,
                of `micro_batch` samples on any device; it returns the loss, or has it as `.loss`.
            targets: How many labels the mean loss of each is over, so that micro-batches count by
                them; without, all count alike.

        Returns:
            The mean loss over the global batch, on every rank.

        Raises:
            ValueError: If `targets` are not as many as `batches`.
        """
        counts = list(targets) if targets is not None else [1] * len(batches)
        given = [
            MicroBatch(inputs=inputs, samples=self.plan.micro_batch, tokens=0, targets=count)
            for inputs, count in zip(batches, counts, strict=True)
        ]
        repeated = self.plan.tensor * self.plan.pipeline
        (everywhere,) = total([float(sum(counts))], self._group, self.device)
        watch = stopwatch_for(self.device)
        part = self.training.step(given, round(everywhere / repeated), watch)
        (loss,) = total([part.item()], self._group, self.device)
        return loss

    def save(self, folder: Path | str) -> None:
        """Writes this rank's part of a checkpoint, weights and optimizer states, on all ranks.

        Raises:
            OSError: If the folder cannot be written.
        """
        own = Path(folder) / f"rank-{self.rank}"
        own.mkdir(parents=True, exist_ok=True)
        self.training.save(own)

    def close(self) -> None:
        """Gives back what the engine holds beyond the model."""
        self.training.close()

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if self.ranks.world_size > 1 else None


def apply_plan(model: Module, plan: Plan, spec: SweepSpec) -> Applied:
    """Does to a model, in place, what a trial of the plan did to the study's.

    To be called in each rank, with the same weights in all of them: in processes that `torchrun`
    or another launcher started. The default process group is opened where it is not yet.

    Args:
        model: The architecture that the study searched for, with whatever weights.
        plan: A plan of the study.
        spec: The study's: optimizer's rates, schedule, clipping and seed are those of its `train`.

    Raises:
        ClusterError: If there are not as many ranks as the plan has, or no CUDA where it needs it.
        ModelError: If the model is not of the architecture that was searched for.
    """
    device = pick_device(spec.cluster.device, int(os.environ.get("LOCAL_RANK", "0")))
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if not dist.is_initialized() and started > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    ranks = Ranks.join(CONTROL_SECONDS)
    if ranks.world_size != plan.world_size:
        raise ClusterError(
            f"the plan is one of {plan.world_size} ranks and {ranks.world_size} were started:"
            f" use torchrun --nproc-per-node {plan.world_size}"
        )
    facts = describe(spec.model, spec.train)
    load_engine(plan, device)
    mesh = TrialGroup(ranks, device).lend(_COLLECTIVE_SECONDS, plan)
    training = build_training(
        TrialRequest(number=0, plan=plan, spec=spec),
        _as_built(model, facts, plan, spec),
        facts,
        mesh,
        device,
    )
    return Applied(
        plan=plan,
        rank=ranks.rank,
        data_rank=mesh.place.data if mesh else 0,
        device=device,
        training=training,
        ranks=ranks,
    )


def prepare_blocks(model: Module, plan: Plan, spec: SweepSpec, *, recompute: bool) -> Module:
    """The model with the plan's attention, its blocks recomputed if asked, and compiled; in place.

    Raises:
        ModelError: If the model is not of the architecture that was searched for.
    """
    facts = describe(spec.model, spec.train)
    built = _as_built(model, facts, plan, spec)
    settings = render_checkpoint(plan, facts.blocks)
    blocks = checkpoint_blocks(model, built.blocks, settings) if recompute else built.blocks
    if plan.compile:
        compile_blocks(blocks)
    return model


def _as_built(model: Module, facts: ModelFacts, plan: Plan, spec: SweepSpec) -> BuiltModel:
    if differences := list(_differences(model, facts)):
        raise ModelError(
            f"the model is not the {facts.name} that the study searched for:"
            f" {'; '.join(differences)}"
        )
    choose = getattr(model, "set_attn_implementation", None)  # transformers' models have it
    if choose is not None:
        choose(plan.attention)
    return BuiltModel(
        module=model,
        blocks=find_blocks(model),
        task=spec.model.task,
        vocab_size=facts.vocab_size,
        batch_maker=None,
        tensor_plan=tuple(spec.model.tensor_plan.items()),
    )


def _differences(model: Module, facts: ModelFacts) -> Iterator[str]:
    blocks = len(find_blocks(model))
    if facts.blocks and blocks != facts.blocks:
        yield f"it has {blocks} repeated blocks and not {facts.blocks}"
    weights = sum(weight.numel() for weight in model.parameters())
    if facts.parameters and weights != facts.parameters:
        yield f"it has {weights:,} parameters and not {facts.parameters:,}"


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
        return cls(spec, ExportManifest.read(folder).plan)

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
