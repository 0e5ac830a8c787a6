"""The front door of models: a preset, a folder, a Hub id or a function of the user's."""

from __future__ import annotations

from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.train_section import TrainSpec
from workers.models import function, hub
from workers.models.built import BuiltModel


def describe(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """What is known of the model, without memory for its weights; cached per process.

    Raises:
        ModelError: If the model cannot be found or built, or has no position for each token
            of `train.sequence_length`.
    """
    if function.is_function(spec):
        return function.describe_function(spec)
    return hub.describe_hub(spec, train)


def build(spec: ModelSpec, train: TrainSpec, *, attention: Attention) -> BuiltModel:
    """The model on the CPU in fp32, its weights drawn from `train.seed`.

    The same spec and seed give the same weights on every rank and under every plan; the
    process's own random state is left as it was. `attention` does not apply to functions.

    Raises:
        ModelError: If the model cannot be found or configured. What a function of the user's
            raises, and running out of memory, pass through as they are.
    """
    if function.is_function(spec):
        return function.build_function(spec, train)
    return hub.build_hub(spec, train, attention=attention)
