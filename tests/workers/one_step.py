"""A plan's training on a rank, as a trial builds it, for tests that look inside."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from search_spaces.facts import ModelFacts, with_findings
from search_spaces.settings.deepspeed_config import render_deepspeed
from search_spaces.trial import TrialRequest
from workers.data.batches import BatchSource, StepBatches
from workers.engines.build import build_training, load_engine
from workers.engines.stopwatch import Stopwatch
from workers.memory.device_runtime import runtime_for
from workers.models.built import batch_source
from workers.models.load import build
from workers.plain_torch.slices import as_distributed
from workers.prepare import prepare
from workers.process_groups import Mesh
from workers.worker import Worker

_SECONDS = 600.0  # for a group of ranks to form, on a busy machine

OptimizerOf = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The training of a plan on this rank, with the batches of its data."""

    request: TrialRequest
    training: Any  # of the plan's engine
    mesh: Mesh | None
    source: BatchSource
    device: torch.device

    @property
    def module(self) -> nn.Module:
        """The model, as the engine wrapped it."""
        module: nn.Module = self.training.module
        return module

    def batches(self, number: int = 0) -> StepBatches:
        """Returns this rank's batches of a step."""
        plan, mesh = self.request.plan, self.mesh
        step = self.source.step(plan, mesh.place.data if mesh else 0, number)
        return step.counted_over(plan, mesh.group if mesh else None, self.device)

    def step(self, number: int = 0) -> torch.Tensor:
        """Trains on the samples of a step; returns this rank's part of the loss."""
        given = self.batches(number)
        loss: torch.Tensor = self.training.step(
            given.batches, given.targets, Stopwatch(runtime_for(self.device))
        )
        return loss


def built(worker: Worker, request: TrialRequest, optimizer_of: OptimizerOf | None = None) -> Built:
    """Builds the training of a plan, with another optimizer where one is given."""
    plan, spec = request.plan, request.spec
    load_engine(plan, worker.device)
    mesh = worker.group.acquire(_SECONDS, plan)
    facts = with_findings(prepare(spec), request.step)
    model = build(spec.model, spec.train, attention=plan.attention)
    source = batch_source(model, spec, facts.target_rule)
    training = _training(request, facts, mesh, worker.device, optimizer_of)
    return Built(request=request, training=training, mesh=mesh, source=source, device=worker.device)


def _training(
    request: TrialRequest,
    facts: ModelFacts,
    mesh: Mesh | None,
    device: torch.device,
    optimizer_of: OptimizerOf | None,
) -> Any:
    plan, spec = request.plan, request.spec
    model = build(spec.model, spec.train, attention=plan.attention)
    if optimizer_of is None or plan.engine == "torch":
        training: Any = build_training(request, model, facts, mesh, device)
        if optimizer_of is None:
            return training
        update = replace(training.update, optimizer=optimizer_of(training.module))
        return replace(training, update=update)
    from workers.engines.deepspeed import start_deepspeed

    settings = render_deepspeed(plan, facts, spec, device.type)
    return start_deepspeed(model, settings, mesh, device, spec.train, optimizer_of)


def sgd(rate: float) -> OptimizerOf:
    """Returns SGD, which moves weights by their gradients, whose scale AdamW hides."""
    return lambda module: torch.optim.SGD(module.parameters(), lr=rate, foreach=False)


def whole_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Gathers the weights of a module from all ranks, in the order of the unsplit model."""
    gathered = {}
    for name, weight in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        gathered[name] = _original_order(owner, _whole(weight).detach()).clone()
    return gathered


def _original_order(owner: nn.Module, whole: torch.Tensor) -> torch.Tensor:
    """Undoes `workers.parallel.tensor.split_order`."""
    parts, ranks = getattr(owner, "packing", (1, 1))
    dim = whole.dim() - 1 if getattr(owner, "transposed", False) else 0
    if parts == 1 or ranks == 1:
        return whole
    pieces: torch.Tensor = whole.unflatten(dim, (ranks, parts, -1))
    return pieces.transpose(dim, dim + 1).flatten(dim, dim + 2)


def _whole(weight: nn.Parameter) -> torch.Tensor:
    if hasattr(weight, "ds_tensor"):  # of ZeRO-3
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([weight]):
            return weight.detach().clone()
    slices = as_distributed(weight)
    return slices.full_tensor() if isinstance(slices, DTensor) else slices
