"""Describes and builds a model: a preset, a folder, a Hub id or a function of the user's.

Importing transformers takes over a second, a third of a rank's start, so that only the models
that need it import it.
"""

from dataclasses import replace
from functools import lru_cache

import torch

from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models import function
from workers.models.built import BuiltModel
from workers.models.fake_memory import FakeMemory
from workers.models.optimizer import optimizer_facts
from workers.models.user_code import user_code_errors


def describe(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts of a model without memory for its weights; cached per process.

    Raises:
        ModelError: If the model cannot be found or built, has fewer positions than
            `train.sequence_length`, or cannot take `train`'s adapters or its optimizer.
    """
    read = train.model_dump_json(exclude={"seed", "learning_rate", "grad_clip"})
    return _described(spec.model_dump_json(), read)


@lru_cache(maxsize=32)
def _described(spec_json: str, train_json: str) -> ModelFacts:
    spec = ModelSpec.model_validate_json(spec_json)
    train = TrainSpec.model_validate_json(train_json)
    with user_code_errors(f"{spec.name} cannot be built"):
        if function.is_function(spec):
            facts = function.describe_function(spec, train)
        else:
            from workers.models import hub

            facts = hub.describe_transformers_model(spec, train)
        return replace(facts, optimizer=optimizer_facts(spec, train, build_fake))


def build(spec: ModelSpec, train: TrainSpec, *, attention: Attention) -> BuiltModel:
    """Builds the model in fp32, with weights that follow from `train.seed`.

    A model of transformers is built on the meta device: `BuiltModel.initial` gives its weights
    memory and values once the model is split. A function of the user's builds on the CPU as
    its code says. The same spec and seed give the same weights on every rank and under every
    plan. The process's own random state does not change. Functions ignore `attention`.

    Raises:
        ModelError: If the model cannot be found or configured. Errors of a user's function
            and out-of-memory errors pass through unchanged.
    """
    if function.is_function(spec):
        return function.build_function(spec, train)
    from workers.models import hub

    return hub.build_transformers_model(spec, train, attention=attention)


def build_fake(spec: ModelSpec, train: TrainSpec, mode: FakeMemory) -> BuiltModel:
    """Builds the model of fake tensors of `mode`, which report the CPU as their device.

    Raises:
        ModelError: As `build`.
    """
    if function.is_function(spec):
        return function.build_fake_function(spec, train, mode)
    model = build(spec, train, attention="eager")
    with mode:
        model.module.to_empty(device=torch.device("cpu"))
    return model


def build_whole(spec: ModelSpec, train: TrainSpec, *, attention: Attention) -> BuiltModel:
    """Builds the whole model on the CPU, with the values of its weights.

    Raises:
        ModelError: As `build`.
    """
    model = build(spec, train, attention=attention)
    model.initial.materialise(model.module, torch.device("cpu"))
    return model
