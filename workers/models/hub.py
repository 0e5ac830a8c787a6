"""Models of transformers: presets, folders with a config.json and Hub ids."""

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
from workers.models.init_recorder import CannotTellError, Recipe, recording
from workers.models.lora import adapters_of, add_adapters, trainable_parameters
from workers.models.stack import find_blocks
from workers.models.tensor_plan import parallel_facts

_MISSING = {
    2: "flash-attn is not installed; `pip install flash-attn --no-build-isolation` brings it",
    # no index has it
    3: "flash-attn-3 is not installed; `python setup.py install` in the folder hopper of"
    " https://github.com/Dao-AILab/flash-attention brings it",
}
_HEADS: dict[Task, Any] = {
    "causal-lm": AutoModelForCausalLM,
    "masked-lm": AutoModelForMaskedLM,
    "seq2seq": AutoModelForSeq2SeqLM,
    "sequence-classification": AutoModelForSequenceClassification,
}
PAD_TOKEN_ID = 0  # what `workers.data` pads with


def attentions_of(module: Any) -> tuple[Attention, ...]:
    """What the architecture implements and this machine has installed, the usual one first."""
    offered: list[Attention] = ["sdpa"] if module._supports_sdpa else []
    offered.append("eager")
    if getattr(module, "_supports_flash_attn", False):
        # of an architecture that needs more of the kernel, as gpt-oss its sinks; None: all work
        working = getattr(module, "_compatible_flash_implementations", None)
        installed: dict[Attention, bool] = {
            "flash_attention_2": is_flash_attn_2_available(),
            "flash_attention_3": is_flash_attn_3_available(),
        }
        offered += [name for name, there in installed.items() if there]
        offered = [name for name in offered if name not in installed or name in (working or [name])]
    return tuple(offered)


def flash_lack(generation: Literal[2, 3], device: torch.device) -> str | None:
    """Why flash attention of that generation cannot be used, None if it can."""
    if device.type != "cuda":
        return f"flash_attention_{generation} needs a CUDA device"
    available = is_flash_attn_2_available if generation == 2 else is_flash_attn_3_available
    if available():
        return None
    return _MISSING[generation]


def describe_hub(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """What is known of a model of transformers, from a build on the meta device.

    Raises:
        ModelError: If it cannot be found or built, or if `train.sequence_length` is beyond
            the last of its learned positions.
    """
    lora = adapters_of(train)
    facts, positions = _facts(spec.model_dump_json(), lora.model_dump_json() if lora else None)
    if positions is not None and train.sequence_length > positions:
        raise ModelError(
            f"train.sequence_length is {train.sequence_length}, {spec.name} has learned"
            f" positions for {positions} tokens"
        )
    return replace(facts, name=spec.name)


def build_hub(spec: ModelSpec, train: TrainSpec, *, attention: Attention) -> BuiltModel:
    """A model of transformers on the meta device, in fp32, and how its weights are drawn.

    One whose own code does more to a weight than can be done to a part of it (orthogonal
    weights, say) is built whole on the CPU, its weights drawn from `train.seed`.

    Raises:
        ModelError: If it cannot be found or built; seen on the meta device, so that running out
            of memory is not taken for a fault of the model.
    """
    config = _configure(spec)
    with seeded(train.seed):
        try:
            module, recipes = _record(spec, config, attention, adapters_of(train))
        except CannotTellError:
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
        # decoders classify at the last token that is not padding: must be the data's padding
        config.pad_token_id = PAD_TOKEN_ID
        config.get_text_config().pad_token_id = PAD_TOKEN_ID
    _refuse_other_task(spec, config)
    return config


def _refuse_other_task(spec: ModelSpec, config: Any) -> None:
    if hasattr(config, "auto_map"):
        return  # code of its own, which says so itself
    fitting = [task for task, head in _HEADS.items() if type(config) in head._model_mapping]
    if spec.task not in fitting:
        raise ModelError(
            f"{spec.name} ({config.model_type}) has no head for task {spec.task},"
            f" it has one for {' and '.join(fitting) or 'none of the tasks'}"
        )
    is_encoder = getattr(config, "is_decoder", None) is False and "masked-lm" in fitting
    if spec.task == "causal-lm" and is_encoder:
        raise ModelError(
            f"{spec.name} ({config.model_type}) is an encoder, whose tokens see those after"
            " them: set model.task: masked-lm, or model.config.is_decoder: true"
        )


def _record(
    spec: ModelSpec, config: Any, attention: Attention, lora: LoraSpec | None
) -> tuple[nn.Module, dict[str, Recipe]]:
    """The model on the meta device, and what its own code would have done to its weights.

    Under `torch.device("meta")` transformers leaves the weights as their modules made them, so
    its initialisation is called here, before weights are tied as in a build on the CPU; outside
    of that context, so that the values it computes (rotary frequencies) are real.
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
    return {name: made for name, made in recorder.recipes(module).items() if name in trained}


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
