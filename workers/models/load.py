"""The front door of models: a preset, a folder, a Hub id or a function of the user's.

transformers takes more than a second to import, a third of a rank's start: only its models do so.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.sections import TrainSpec
from workers.models import function
from workers.models.built import BuiltModel
from workers.models.user_code import users_code


def describe(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """What is known of the model, without memory for its weights; cached per process.

    Raises:
        ModelError: If the model cannot be found or built, has no position for each token of
            `train.sequence_length`, or cannot have `train`'s adapters.
    """
    with users_code(f"{spec.name} cannot be built"):
        if function.is_function(spec):
            return function.describe_function(spec, train)
        from workers.models import hub

        return hub.describe_hub(spec, train)


def build(spec: ModelSpec, train: TrainSpec, *, attention: Attention) -> BuiltModel:
    """The model in fp32, its weights to be drawn from `train.seed`.

    A model of transformers is built without memory for its weights: `BuiltModel.initial` gives
    them their values once it has been split. A function of the user's builds as its code says,
    on the CPU. The same spec and seed give the same weights on every rank and under every plan;
    the process's own random state is left as it was. `attention` does not apply to functions.

    Raises:
        ModelError: If the model cannot be found or configured. What a function of the user's
            raises, and running out of memory, pass through as they are.
    """
    if function.is_function(spec):
        return function.build_function(spec, train)
    from workers.models import hub

    return hub.build_hub(spec, train, attention=attention)


def build_whole(spec: ModelSpec, train: TrainSpec, *, attention: Attention) -> BuiltModel:
    """`build`, all of it on the CPU and with its values.

    Raises:
        ModelError: As `build`.
    """
    return build(spec, train, attention=attention).materialised()


def build_fake(
    spec: ModelSpec, train: TrainSpec, *, attention: Attention, mode: FakeTensorMode
) -> BuiltModel:
    """`build`, with fake tensors of `mode` that say they lie on the CPU.

    Raises:
        ModelError: As `build`.
    """
    if function.is_function(spec):
        return function.build_fake_function(spec, train, mode)
    from workers.models import hub

    model = hub.build_hub(spec, train, attention=attention)
    with mode:
        model.module.to_empty(device=torch.device("cpu"))
    return model
