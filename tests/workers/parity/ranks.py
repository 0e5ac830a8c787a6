"""Jobs of ranks: the change of each weight by two steps of SGD under a plan, and a whole trial."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.utils import logging as transformers_logging

from search_spaces.settings.deepspeed_config import render_deepspeed
from search_spaces.trial import Outcome, TrialRequest
from tests.workers.parity.plain_loop import FIRST_STEPS, FP16_SCALE
from workers.data.batches import batch_source
from workers.engines.base import AbstractTraining
from workers.engines.build import build_training, load_engine
from workers.engines.pipeline import PipelineTraining
from workers.engines.stopwatch import stopwatch_for
from workers.engines.torch import TorchTraining
from workers.entry import run_trial
from workers.models.load import build
from workers.parallel.tensor import original_order
from workers.plain_torch.slices import as_distributed
from workers.prepare import prepare
from workers.process_groups import Mesh
from workers.worker import Worker

# fp16: between two steps that count lies one that overflows, by a scale that fp16 cannot hold. The
# scaler halves it then.
TOO_LARGE = 2.0**60
_FIRST, _SECOND = FIRST_STEPS
_WITHOUT_SCALES = ((_FIRST, None), (_SECOND, None))
_WITH_OVERFLOW = ((_FIRST, FP16_SCALE), (_SECOND + 1, TOO_LARGE), (_SECOND, FP16_SCALE))


def changes(worker: Worker, request: TrialRequest, rate: float) -> dict[str, Any] | str:
    """Returns the change of each of this rank's weights by two steps, or what failed."""
    _be_quiet()
    try:
        return _changes(worker, request, rate)
    except Exception as error:  # noqa: BLE001  # told beside the others
        return f"{type(error).__name__}: {error}".splitlines()[0]


def trial(worker: Worker, request: TrialRequest) -> Outcome:
    """Runs a trial with its own optimizer."""
    _be_quiet()
    return run_trial(request, worker)


def _be_quiet() -> None:
    transformers_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")


def _changes(worker: Worker, request: TrialRequest, rate: float) -> dict[str, Any]:
    plan, spec = request.plan, request.spec
    load_engine(plan, worker.device)
    mesh = worker.group.acquire(30.0, plan)
    source = batch_source(build(spec.model, spec.train, attention=plan.attention), spec)
    training = _with_sgd(request, rate, mesh, worker.device)
    module: nn.Module = training.module  # type: ignore[attr-defined]  # of every engine
    before = whole_weights(module)
    for number, scale in _WITH_OVERFLOW if plan.precision == "fp16" else _WITHOUT_SCALES:
        scaler = None
        if scale is not None:
            assert isinstance(training, TorchTraining | PipelineTraining)
            scaler = training.update.scaler
            assert scaler is not None
            scaler.update(new_scale=scale)
        step = source.step(plan, mesh.place.data if mesh else 0, number)
        step = step.counted_over(plan, mesh.group if mesh else None, worker.device)
        training.step(step.batches, step.targets, stopwatch_for(worker.device))
        if scaler is not None:
            overflown = scale == TOO_LARGE
            assert scaler.get_scale() == (scale / 2 if overflown else scale), "the loss scale"
    after = whole_weights(module)
    training.close()
    return {name: (before[name] - weight).numpy() for name, weight in after.items()}


def _with_sgd(
    request: TrialRequest, rate: float, mesh: Mesh | None, device: torch.device
) -> AbstractTraining:
    """Builds the training of a plan with SGD in place of its optimizer."""

    def sgd(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=rate, foreach=False)

    plan, spec = request.plan, request.spec
    model = build(spec.model, spec.train, attention=plan.attention)
    if plan.engine == "deepspeed":
        from workers.engines.deepspeed import start_deepspeed

        settings = render_deepspeed(plan, prepare(spec), spec, device.type)
        return start_deepspeed(model, settings, mesh, device, spec.train, sgd)
    training = build_training(request, model, prepare(spec), mesh, device)
    assert isinstance(training, TorchTraining | PipelineTraining)
    update = replace(training.update, optimizer=sgd(training.module))
    return replace(training, update=update)


def whole_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Gathers the weights of a module from all ranks, in the order of the unsplit model."""
    found = {}
    for name, weight in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        found[name] = original_order(owner, _whole(weight).detach()).clone()
    return found


def _whole(weight: nn.Parameter) -> torch.Tensor:
    if hasattr(weight, "ds_tensor"):  # of ZeRO-3
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([weight]):
            return weight.detach().clone()
    slices = as_distributed(weight)
    return slices.full_tensor() if isinstance(slices, DTensor) else slices


def tensors(ranks: list[dict[str, Any]]) -> list[Mapping[str, torch.Tensor]]:
    """Returns the changes as tensors, as which they do not travel between processes."""
    return [{name: torch.from_numpy(change) for name, change in each.items()} for each in ranks]
