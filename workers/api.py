"""Plans applied to users' own models, for their own training loops."""

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Module

from search_spaces.errors import ClusterError, ModelError
from search_spaces.facts import ModelFacts, TargetRule
from search_spaces.hardware.device import BACKENDS
from search_spaces.plan import Plan
from search_spaces.safety.files import make_folder
from search_spaces.settings.blocks import render_blocks
from search_spaces.settings.export_manifest import ExportManifest, code_folder, load_exported_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import TrialRequest
from workers.data.batches import WORST_STEP, StepBatches
from workers.data.collate import MicroBatch, part_of_tokens
from workers.engines.base import AbstractTraining
from workers.engines.build import build_training, load_engine
from workers.engines.stopwatch import Stopwatch
from workers.memory.device_runtime import runtime_for
from workers.models.built import BuiltModel, batch_source
from workers.models.frozen_base import parameter_count
from workers.models.load import build, build_whole, describe
from workers.models.stack import find_blocks
from workers.models.trust import trust_modules
from workers.models.user_code import user_code_errors
from workers.parallel.apply import wrap_blocks
from workers.plain_torch.states import hold_in_bf16
from workers.process_groups import Ranks, TrialGroup, sum_over_ranks
from workers.worker import CONTROL_SECONDS, pick_device

__all__ = ["Applied", "Module", "apply_plan", "prepare_blocks"]

_COLLECTIVE_SECONDS = 1800.0  # torch's default timeout for gloo
Step = list[tuple[dict[str, Any], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A model split, wrapped and sharded by a plan, with the plan's optimizer.

    `rank` is the rank of this process. Ranks with the same `data_rank` (tensor, pipeline and
    context peers) take the same samples, and context peers each one `part` of their tokens.
    `training` belongs to the engine.
    """

    plan: Plan
    rank: int
    data_rank: int
    device: torch.device
    training: AbstractTraining
    part: int = 0

    @property
    def data(self) -> int:
        """Data ranks with samples of their own: the number of parts of a global batch."""
        return self.plan.sample_ranks

    def step(
        self, batches: Sequence[Mapping[str, Any]], targets: Sequence[float] | None = None
    ) -> float:
        """Takes one optimizer step; all ranks call it together.

        Args:
            batches: The model's keyword arguments for each of the plan's `accumulation` passes:
                `micro_batch` samples each, or more passes of fewer if its tokens are limited (as
                many on all ranks), on any device. The model returns the loss, an object
                with `.loss`, a mapping with "loss", or a tuple that begins with it.
            targets: Number of labels behind the mean loss of each micro-batch, or the sum of their
                weights. Micro-batches are weighted by them; without `targets` all are alike.

        Returns:
            The mean loss over the global batch, on every rank.

        Raises:
            ValueError: If `targets` and `batches` differ in length, or context ranks cannot divide
                the columns of a batch.
        """
        counts = list(targets) if targets is not None else [1] * len(batches)
        whole = (
            MicroBatch(inputs=inputs, samples=self.plan.micro_batch, tokens=0, targets=count)
            for inputs, count in zip(batches, counts, strict=True)
        )
        micro_batches = [part_of_tokens(one, self.part, self.plan.context) for one in whole]
        repeated = self.plan.tensor * self.plan.pipeline
        own = float(sum(batch.targets for batch in micro_batches))
        (summed,) = sum_over_ranks([own], self._group, self.device)
        watch = Stopwatch(runtime_for(self.device))
        part = self.training.step(micro_batches, summed / repeated, watch)
        (loss,) = sum_over_ranks([part.item()], self._group, self.device)
        return loss

    def save(self, folder: Path | str) -> None:
        """Writes this rank's weights and optimizer states; all ranks call it together.

        Raises:
            OSError: If the folder cannot be written.
        """
        own = Path(folder) / f"rank-{self.rank}"
        make_folder(own)
        self.training.save(own)

    def close(self) -> None:
        """Releases what the engine holds beyond the model."""
        self.training.close()

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if self.plan.world_size > 1 else None


def apply_plan(model: Module, plan: Plan, spec: SweepSpec) -> Applied:
    """Applies a plan to a model in place, as a trial of the plan does.

    Each rank calls it with the same weights, in processes started by `torchrun` or another
    launcher. It initializes the default process group if necessary.

    Args:
        model: The architecture that the study tuned, with any weights.
        plan: A plan of the study.
        spec: Specification of the study. Its `train` section gives the learning rate, schedule,
            clipping and seed.

    Raises:
        ClusterError: If the number of ranks is not the plan's, or CUDA is required and missing.
        ModelError: If the model has another architecture than the one that the study tuned.
    """
    device = pick_device(spec.cluster.device, int(os.environ.get("LOCAL_RANK", "0")))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if not dist.is_initialized() and world_size > 1:
        dist.init_process_group(BACKENDS[device.type])
        atexit.register(_leave)
    ranks = Ranks.join(CONTROL_SECONDS)
    if ranks.world_size != plan.world_size:
        raise ClusterError(
            f"the plan needs {plan.world_size} ranks, but {ranks.world_size} were started;"
            f" use torchrun --nproc-per-node {plan.world_size}"
        )
    facts = describe(spec.model, spec.train)
    load_engine(plan, device)
    mesh = TrialGroup(ranks, device).acquire(_COLLECTIVE_SECONDS, plan)
    training = build_training(
        TrialRequest(number=0, plan=plan, spec=spec),
        _as_built(model, facts, plan, spec),
        facts,
        mesh,
        device,
    )
    data_rank, part = divmod(mesh.place.data if mesh else 0, plan.context)
    return Applied(
        plan=plan,
        rank=ranks.rank,
        data_rank=data_rank,
        part=part,
        device=device,
        training=training,
    )


def _leave() -> None:
    """Closes the default process group when the script has ended well, and its model is freed.

    Without it, gloo's threads may abort the process as it ends; after an error, peers may wait for
    this rank, and the launcher ends all. While a DDP model holds the group too, to close it earlier
    would make the model the last to hold it, and freeing that would deadlock: see
    `orchestrator/export/templates/end_group.jinja`.
    """
    if dist.is_initialized() and getattr(sys, "last_value", None) is None:
        gc.collect()
        dist.destroy_process_group()


def prepare_blocks(model: Module, plan: Plan, spec: SweepSpec, *, recompute: bool) -> Module:
    """Sets the plan's attention, states, recomputation and compilation on a model, in place.

    Args:
        model: The architecture that the study tuned.
        plan: A plan of the study.
        spec: Specification of the study.
        recompute: Wrap the blocks that the plan recomputes.

    Returns:
        The same model.

    Raises:
        ModelError: If the model has another architecture than the one that the study tuned.
    """
    facts = describe(spec.model, spec.train)
    built = _as_built(model, facts, plan, spec)
    settings = render_blocks(plan, facts.blocks)
    if not recompute:
        settings = replace(settings, recomputed=())
    if plan.states != "fp32" and plan.engine == "torch":
        hold_in_bf16(model)
    wrap_blocks(model, built.blocks, settings)
    return model


def _as_built(model: Module, facts: ModelFacts, plan: Plan, spec: SweepSpec) -> BuiltModel:
    if differences := list(_differences(model, facts)):
        raise ModelError(
            f"the model is not the {facts.name} that the study tuned: {'; '.join(differences)}"
        )
    set_attention = getattr(model, "set_attn_implementation", None)  # transformers only
    if set_attention is not None:
        set_attention(plan.attention)
    return BuiltModel(
        module=model,
        blocks=find_blocks(model),
        task=None,
        vocab_size=facts.vocab_size,
        batch_maker=None,
        tensor_plan=tuple(spec.model.tensor_plan.items()),
    )


def _differences(model: Module, facts: ModelFacts) -> Iterator[str]:
    blocks = len(find_blocks(model))
    if facts.blocks and blocks != facts.blocks:
        yield f"it has {blocks} repeated blocks instead of {facts.blocks}"
    weights = sum(parameter_count(weight) for weight in model.parameters())
    if facts.parameters and weights != facts.parameters:
        yield f"it has {weights:,} parameters instead of {facts.parameters:,}"


@dataclass(frozen=True, slots=True)
class Reference:
    """The model and the data that a plan was measured with, in plain torch."""

    spec: SweepSpec
    plan: Plan
    rule: TargetRule | None

    @classmethod
    def here(cls, script: str) -> Self:
        """Reads the folder of an exported script.

        Raises:
            UserError: If the folder differs from what was exported, or an input is missing.
        """
        folder = Path(script).resolve().parent
        spec = load_exported_spec(folder)
        if code := code_folder(folder):
            _import_from(code, spec.model.name.partition(":")[0])
        if pickle := spec.model.pickle:
            trust_modules((pickle,))  # the user starts the exported script
        manifest = ExportManifest.read(folder)
        return cls(spec, manifest.plan, manifest.rule)

    def model(self) -> tuple[nn.Module, list[nn.Module]]:
        """Builds the whole model on the CPU, with the initial weights of trials.

        Returns:
            The model and its repeated blocks.
        """
        built = build_whole(self.spec.model, self.spec.train, attention=self.plan.attention)
        return built.module, list(built.blocks)

    def steps(self, rank: int) -> Iterator[Step]:
        """Yields the inputs and loss weights of each optimizer step of a data rank.

        Steps come in the order of a trial: the longest samples first. The weights of all ranks
        add up to 1.
        """
        model = build(self.spec.model, self.spec.train, attention=self.plan.attention)
        source = batch_source(model, self.spec, self.rule)
        steps = (source.step(self.plan, rank, number) for number in count(WORST_STEP))
        return (_weighted(step.counted_over(self.plan, *_all_ranks())) for step in steps)


def _import_from(folder: Path, module: str) -> None:
    # first in the path, since the current directory may have a module of the same name
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    trust_modules(path.stem for path in folder.iterdir())  # the user starts the exported script
    with user_code_errors(module):
        importlib.import_module(module)


def _all_ranks() -> tuple[dist.ProcessGroup | None, torch.device]:
    if not dist.is_initialized():
        return None, torch.device("cpu")
    backend = dist.get_backend()
    kind = next((kind for kind, name in BACKENDS.items() if name in backend), "cpu")
    return dist.group.WORLD, torch.device(kind)


def _weighted(step: StepBatches) -> Step:
    return [(batch.arguments, batch.targets / step.targets) for batch in step.batches]
