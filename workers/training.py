"""From a request to a model that is ready to train: the one place that knows every engine."""

from __future__ import annotations

import torch

from search_spaces.facts import ModelFacts
from search_spaces.render import render_torch
from search_spaces.request import TrialRequest
from workers.engines import AbstractTraining
from workers.engines.torch_training import TorchTraining
from workers.engines.update import Update
from workers.mesh import Mesh
from workers.models.built import BuiltModel
from workers.optimizers import make_optimizer
from workers.parallel.apply import parallelize


def build_training(
    request: TrialRequest,
    model: BuiltModel,
    facts: ModelFacts,
    mesh: Mesh | None,
    device: torch.device,
) -> AbstractTraining:
    """Applies the plan to the model and makes its optimizer."""
    plan, train = request.plan, request.spec.train
    settings = render_torch(plan, facts)
    module = parallelize(model, settings, mesh, device)
    module.train()
    optimizer = make_optimizer(module, settings.optimizer, train)
    return TorchTraining(
        module=module,
        update=Update(optimizer=optimizer),
        settings=settings,
        device=device,
        data=plan.data,
        counts=mesh is None or mesh.place.tensor == 0,
    )
