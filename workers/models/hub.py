"""Models of transformers: presets, folders with a config.json, and Hub ids."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)
from transformers.initialization import no_tie_weights
from transformers.utils.import_utils import (
    is_flash_attn_2_available,
    is_flash_attn_3_available,
)

from search_spaces.errors import ModelError
from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention
from search_spaces.spec.schema import ModelSpec, Task
from search_spaces.spec.sections import LoraSpec, TrainSpec
from workers.models.built import BuiltModel, seeded
from workers.models.capabilities import (
    keeps_packed_samples_apart,
    learned_positions,
    stated_positions,
)
from workers.models.config import BAD_VALUES, make_config, one_sentence
from workers.models.config_source import config_class, raw_config
from workers.models.deferred_init import InitialValues
from workers.models.experts import active_parameters
from workers.models.init_recorder import NotReplayableError, Recipe, recording
from workers.models.lora import adapters_of, add_adapters, trainable_parameters
from workers.models.stack import find_blocks
from workers.models.tensor_plan import parallel_facts

_FLASH_MISSING = {
    2: "flash-attn is not installed; run `pip install flash-attn --no-build-isolation`",
    # on no package index
    3: "flash-attn-3 is not installed; run `python setup.py install` in the folder hopper of"
    " https://github.com/Dao-AILab/flash-attention",
}
_HEADS: dict[Task, Any] = {
    "causal-lm": AutoModelForCausalLM,
    "masked-lm": AutoModelForMaskedLM,
    "seq2seq": AutoModelForSeq2SeqLM,
    "sequence-classification": AutoModelForSequenceClassification,
}
PAD_TOKEN_ID = 0  # as `workers.data` pads


def attentions_of(module: Any) -> tuple[Attention, ...]:
    """Returns the attentions that the architecture supports and this machine has installed.

    The first one is the usual choice.
    """
    attentions: list[Attention] = ["sdpa"] if module._supports_sdpa else []
    attentions.append("eager")
    if getattr(module, "_supports_flash_attn", False):
        # an architecture may need a feature that only some kernels have, as gpt-oss its
        # attention sinks; None: every kernel works
        compatible = getattr(module, "_compatible_flash_implementations", None)
        flash: dict[Attention, bool] = {
            "flash_attention_2": is_flash_attn_2_available(),
            "flash_attention_3": is_flash_attn_3_available(),
        }
        attentions += [
            name
            for name, is_installed in flash.items()
            if is_installed and name in (compatible or [name])
        ]
    return tuple(attentions)


def missing_for_flash(generation: Literal[2, 3], device: torch.device) -> str | None:
    """Returns the reason why flash attention cannot be used on `device`, None if it can.

    Args:
        generation: Of flash attention.
        device: Where it would run.
    """
    if device.type != "cuda":
        return f"flash_attention_{generation} needs a CUDA device"
    available = is_flash_attn_2_available if generation == 2 else is_flash_attn_3_available
    if available():
        return None
    return _FLASH_MISSING[generation]


def describe_transformers_model(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts of a model of transformers, from a build on the meta device.

    Raises:
        ModelError: If the model cannot be found or built, or if `train.sequence_length` is
            beyond its last learned position.
    """
    lora = adapters_of(train)
    facts, positions = _facts(spec.model_dump_json(), lora.model_dump_json() if lora else None)
    if positions is not None and train.sequence_length > positions:
        raise ModelError(
            f"train.sequence_length is {train.sequence_length}, but {spec.name} has learned"
            f" positions for {positions} tokens"
        )
    return replace(facts, name=spec.name)


def build_transformers_model(
    spec: ModelSpec, train: TrainSpec, *, attention: Attention
) -> BuiltModel:
    """Builds a model of transformers on the meta device, in fp32, with recipes for its weights.

    Some initialisations cannot be done on a part of a weight (orthogonal weights, say). A
    model that uses one is built whole on the CPU, its weights drawn from `train.seed`.

    Raises:
        ModelError: If the model cannot be found or built. The build on the meta device shows
            this, so that running out of memory is not taken for a fault of the model.
    """
    config = _configure(spec)
    with seeded(train.seed):
        try:
            module, recipes = _record(spec, config, attention, adapters_of(train))
        except NotReplayableError:
            module, recipes = _from_config(spec, _configure(spec), attention), {}
            if lora := adapters_of(train):
                add_adapters(spec.name, module, lora)
    return BuiltModel(
        module=module,
        blocks=find_blocks(module),
        task=spec.task,
        vocab_size=config.get_text_config().vocab_size,
        batch_maker=None,
        initial=InitialValues(seed=train.seed, recipes=recipes),
        tensor_plan=tuple(spec.tensor_plan.items()),
    )


@lru_cache(maxsize=32)
def _facts(spec_json: str, lora_json: str | None) -> tuple[ModelFacts, int | None]:
    spec = ModelSpec.model_validate_json(spec_json)
    config = _configure(spec)
    module = _build_on_meta(spec, config, "eager")
    if lora_json is not None:
        with torch.device("meta"):
            add_adapters(spec.name, module, LoraSpec.model_validate_json(lora_json))
    attentions = attentions_of(module)
    learned = learned_positions(module)
    facts = ModelFacts(
        name=spec.name,
        architecture=type(module).__name__,
        parameters=sum(weight.numel() for weight in module.parameters()),
        trainable=trainable_parameters(module) if lora_json else None,
        active=active_parameters(module),
        blocks=len(find_blocks(module)),
        attentions=attentions,
        packing=spec.task == "causal-lm" and keeps_packed_samples_apart(module, attentions),
        max_sequence_length=learned or stated_positions(config),
        vocab_size=config.get_text_config().vocab_size,
        **parallel_facts(module, spec.tensor_plan),
    )
    return facts, learned


def _configure(spec: ModelSpec) -> Any:
    raw = raw_config(spec)
    config = make_config(spec.name, config_class(spec, raw), raw, spec.config)
    if spec.task == "sequence-classification":
        # decoders classify at the last token that is not padding, so this must be the data's
        config.pad_token_id = PAD_TOKEN_ID
        config.get_text_config().pad_token_id = PAD_TOKEN_ID
    _refuse_other_task(spec, config)
    return config


def _refuse_other_task(spec: ModelSpec, config: Any) -> None:
    if hasattr(config, "auto_map"):
        return  # the model's own code raises its own error
    tasks = [task for task, head in _HEADS.items() if type(config) in head._model_mapping]
    if spec.task not in tasks:
        raise ModelError(
            f"{spec.name} ({config.model_type}) has no head for task {spec.task};"
            f" it has one for {' and '.join(tasks) or 'none of the tasks'}"
        )
    is_encoder = getattr(config, "is_decoder", None) is False and "masked-lm" in tasks
    if spec.task == "causal-lm" and is_encoder:
        raise ModelError(
            f"{spec.name} ({config.model_type}) is an encoder: its tokens attend to later tokens."
            " Set model.task: masked-lm, or model.config.is_decoder: true"
        )


def _record(
    spec: ModelSpec, config: Any, attention: Attention, lora: LoraSpec | None
) -> tuple[nn.Module, dict[str, Recipe]]:
    """Builds the model on the meta device, and records how its code initialises the weights.

    Under `torch.device("meta")` transformers leaves the weights as their modules made them, so
    that its initialisation is called here: before weights are tied, as in a build on the CPU,
    and outside of the meta context, so that values it computes (rotary frequencies) are real.
    """
    with recording() as recorder:
        with no_tie_weights():
            module = _build_on_meta(spec, config, attention)
        module.initialize_weights()
    recipes = recorder.recipes(module)
    module.tie_weights(recompute_mapping=False)
    ties: dict[str, str] = module.all_tied_weights_keys
    recipes |= {name: recipes[source] for name, source in ties.items()}
    return module, recipes | (_record_adapters(spec, module, lora) if lora else {})


def _record_adapters(spec: ModelSpec, module: nn.Module, lora: LoraSpec) -> dict[str, Recipe]:
    with recording() as recorder, torch.device("meta"):
        add_adapters(spec.name, module, lora)
    trained = {name for name, weight in module.named_parameters() if weight.requires_grad}
    recipes = recorder.recipes(module)
    return {name: recipe for name, recipe in recipes.items() if name in trained}


def _build_on_meta(spec: ModelSpec, config: Any, attention: Attention) -> Any:
    try:
        with torch.device("meta"):
            return _from_config(spec, config, attention)
    except BAD_VALUES as error:
        raise ModelError(f"{spec.name} cannot be built: {one_sentence(error)}") from error


def _from_config(spec: ModelSpec, config: Any, attention: Attention) -> Any:
    return _HEADS[spec.task].from_config(
        config,
        trust_remote_code=spec.trust_remote_code,
        dtype=torch.float32,
        attn_implementation=attention,
    )
