"""Builds a model that is ready to train: the only place that knows every engine."""

import importlib
from functools import partial

import torch

from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.settings.deepspeed_config import render_deepspeed
from search_spaces.settings.render import TorchSettings, render_torch
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import TrainSpec
from search_spaces.trial import TrialRequest
from workers.engines.base import AbstractTraining
from workers.engines.optimizer_step import make_norm, make_update
from workers.engines.torch import TorchTraining
from workers.models.built import BuiltModel
from workers.models.optimizer import optimizer_of
from workers.parallel.apply import parallelize
from workers.parallel.compile import load_compiler
from workers.parallel.deepspeed_features import (
    load_cpu_adam,
    load_deepspeed,
    load_nvme,
    missing_for_cpu_adam,
    missing_for_nvme,
)
from workers.parallel.draws import seed_draws
from workers.process_groups import Mesh


def build_training(
    request: TrialRequest,
    model: BuiltModel,
    facts: ModelFacts,
    mesh: Mesh | None,
    device: torch.device,
) -> AbstractTraining:
    """Applies the plan to the model and makes its optimizer; call `load_engine` first.

    What training draws from here on follows from `train.seed`.
    """
    plan, train = request.plan, request.spec.train
    if plan.engine == "deepspeed":
        from workers.engines.deepspeed import start_deepspeed

        config = render_deepspeed(plan, facts, request.spec, device.type)
        make = partial(optimizer_of, config.optimizer_kind, train)
        training: AbstractTraining = start_deepspeed(model, config, mesh, device, train, make)
    else:
        training = _build_torch(plan, train, model, render_torch(plan, facts), mesh, device)
    seed_draws(train.seed, plan, mesh)
    return training


def _build_torch(
    plan: Plan,
    train: TrainSpec,
    model: BuiltModel,
    settings: TorchSettings,
    mesh: Mesh | None,
    device: torch.device,
) -> AbstractTraining:
    if settings.pipeline is not None and mesh is not None:
        from workers.engines.pipeline import build_pipeline

        return build_pipeline(model, settings, train, mesh, device)
    module = parallelize(model, settings, mesh, device)
    module.train()
    norm = make_norm(mesh, device)
    return TorchTraining(
        module=module,
        update=make_update(module, settings.optimizer_kind, train, settings.compute, norm),
        norm=norm,
        settings=settings,
        device=device,
        data=plan.data,
        counts=mesh is None or mesh.place.tensor == 0,
        writes=mesh is None or mesh.is_first_replica,
    )


def load_engine(plan: Plan, device: torch.device) -> None:
    """Loads the libraries that the plan needs beyond torch, once per process."""
    if plan.optimizer in ("adamw_8bit", "adamw_8bit_paged"):
        importlib.import_module("bitsandbytes.optim")  # else it counts towards a trial
    if plan.states == "bf16_stochastic":
        importlib.import_module("torchao.optim")
    if plan.compile or plan.states == "bf16_stochastic":
        load_compiler(device)
    if plan.pipeline > 1:
        from workers.parallel import pipeline  # noqa: F401  # torch's schedules take half a second
    if plan.engine == "deepspeed":
        load_deepspeed(device)
        if plan.offload_optimizer != "none":
            load_cpu_adam()
        if "nvme" in (plan.offload_optimizer, plan.offload_parameters):
            load_nvme()


def load_engines(spec: SweepSpec, device: torch.device) -> None:
    """Loads DeepSpeed and the extensions that a sweep may need, before its first trial.

    The extensions are compiled on first use on a machine. That takes minutes, which must not
    count towards a trial.
    """
    if "deepspeed" not in spec.named("engine"):
        return
    load_deepspeed(device)
    usual = ("cpu",) if device.type == "cuda" and spec.space.offload_optimizer is None else ()
    state_places = (*usual, *spec.named("offload_optimizer"))
    weight_places = spec.named("offload_parameters")
    if set(state_places) & {"cpu", "nvme"} and missing_for_cpu_adam() is None:
        load_cpu_adam()
    if "nvme" in (*state_places, *weight_places) and missing_for_nvme(device) is None:
        load_nvme()
