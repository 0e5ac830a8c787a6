"""Models of transformers: presets, folders with a config.json, and Hub ids."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import nn
from transformers.initialization import no_tie_weights
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from search_spaces.errors import ModelError
from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention
from search_spaces.specification.schema import ModelSpec, Task
from search_spaces.specification.sections import LoraSpec, TrainSpec
from workers.data.collate import PAD_TOKEN_ID
from workers.models.block_calls import training_facts
from workers.models.built import PROBE_SAMPLES, BuiltModel, seeded
from workers.models.capabilities import bypasses_hooks, learned_positions, separating_attentions
from workers.models.config import BAD_VALUES, make_config, one_sentence
from workers.models.config_source import check_remote_code, config_class, raw_config, stored_base
from workers.models.deferred_init import InitialValues, original_name
from workers.models.experts import expert_facts
from workers.models.init_recorder import NotReplayableError, Recipe, recording
from workers.models.lora import adapters_of, add_adapters, trainable_parameters
from workers.models.loss_probes import follows_label_count, probe_loss
from workers.models.shapes import random_batches
from workers.models.stack import find_blocks
from workers.models.step_probe import weight_findings
from workers.models.task import HEADS, TEXT_TASKS, task_of
from workers.models.tensor_plan import parallel_facts

_FLASH_MISSING = {
    2: "flash-attn is not installed; run `pip install flash-attn --no-build-isolation`",
    # on no package index
    3: "flash-attn-3 is not installed; run `python setup.py install` in the folder hopper of"
    " https://github.com/Dao-AILab/flash-attention",
}
_FLASH_CAPABILITY = {2: (8, 0), 3: (9, 0)}  # Ampere, Hopper


def attentions_of(module: Any) -> tuple[Attention, ...]:
    """Returns the attentions that the architecture supports; the first one is the usual choice.

    Whether a kernel is installed is asked of the nodes: `missing_for_flash`.
    """
    attentions: list[Attention] = ["sdpa"] if module._supports_sdpa else []
    attentions.append("eager")
    if getattr(module, "_supports_flash_attn", False):
        # an architecture may need a feature that only some kernels have, as gpt-oss its
        # attention sinks; None: every kernel works
        compatible = getattr(module, "_compatible_flash_implementations", None)
        flash: tuple[Attention, ...] = ("flash_attention_2", "flash_attention_3")
        attentions += [name for name in flash if name in (compatible or flash)]
    return tuple(attentions)


def missing_for_flash(generation: Literal[2, 3], device: torch.device) -> str | None:
    """Returns the reason why flash attention cannot be used on `device`, None if it can.

    Source:
        https://github.com/Dao-AILab/flash-attention#cuda-support: "Ampere, Ada, or Hopper GPUs" for
        the second generation, "H100 / H800 GPU" for the third.

    Args:
        generation: Of flash attention.
        device: Where it would run.
    """
    if device.type != "cuda":
        return f"flash_attention_{generation} needs a CUDA device"
    available = is_flash_attn_2_available if generation == 2 else is_flash_attn_3_available
    if not available():
        return _FLASH_MISSING[generation]
    needed, capability = _FLASH_CAPABILITY[generation], torch.cuda.get_device_capability(device)
    on_nvidia = torch.version.hip is None
    if on_nvidia and (capability < needed or (generation == 3 and capability >= (10, 0))):
        return (
            f"flash_attention_{generation} needs compute capability {needed[0]}.{needed[1]},"
            f" but the GPU has {capability[0]}.{capability[1]}"
        )
    return None


def describe_transformers_model(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts of a model of transformers, from a build on the meta device.

    Raises:
        ModelError: If the model cannot be found or built, or if `train.sequence_length` is
            beyond its last learned position.
    """
    lora, (task, config) = _adapters(spec, train), _configure(spec)
    module, length = _build_on_meta(spec, task, config, "eager"), train.sequence_length
    if lora is not None:
        with torch.device("meta"):
            add_adapters(spec.name, module, lora)
    attentions = attentions_of(module)
    maker = random_batches(spec, task, module, sequence_length=length, seed=0)
    facts = ModelFacts(
        name=spec.name,
        architecture=type(module).__name__,
        task=task,
        parameters=sum(weight.numel() for weight in module.parameters()),
        trainable=trainable_parameters(module) if lora else None,
        base=lora.base if lora else None,
        experts=expert_facts(module),
        blocks=len(find_blocks(module)),
        attentions=attentions,
        packing=separating_attentions(module, attentions) if task == "causal-lm" else (),
    )
    if maker is not None:
        inputs = lru_cache(lambda: maker(PROBE_SAMPLES))
        parallel = parallel_facts(module, spec.tensor_plan, inputs)
        refused = f"{facts.architecture} has no head of words"
        refusals: dict[str, Any] = {
            "loss_refusal": refused,
            "tile_refusal": f"{facts.architecture} reads no text",
        }
        return replace(facts, **parallel, **training_facts(module, inputs), **refusals)
    positions = learned_positions(module)
    if positions is not None and length > positions:
        raise ModelError(
            f"train.sequence_length is {length}, but {spec.name} has learned positions for"
            f" {positions} tokens"
        )
    facts = replace(_with_text(facts, task, module), **parallel_facts(module, spec.tensor_plan))
    return replace(facts, **_context_facts(facts, config))


def _context_facts(facts: ModelFacts, config: Any) -> dict[str, Any]:
    """Returns the fields of `ModelFacts` on context ranks.

    Models that keep packed samples apart read position ids and masks as transformers makes them.
    """
    heads = getattr(config.get_text_config(), "num_attention_heads", None)
    if isinstance(heads, int) and "sdpa" in facts.packing:
        return {"attention_heads": heads, "context_refusal": None}
    reason = f"{facts.architecture} has no attention to whole rows that ranks can divide"
    return {"context_refusal": reason}


def divides_by_label_count(spec: ModelSpec) -> bool:
    """Tells if a model's loss is the sum over its labels divided by a count that it is passed.

    Trainer counts the labels of all micro-batches of a step and relies on this.

    Raises:
        ModelError: If the model cannot be found or built.
    """
    task, config = _configure(spec)
    module = _build_on_meta(spec, task, config, "eager")
    return task in TEXT_TASKS and follows_label_count(module, task)


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
    (task, config), lora = _configure(spec), _adapters(spec, train)
    with seeded(train.seed):
        try:
            module, recipes = _record(spec, task, config, attention, lora)
        except NotReplayableError:
            module, recipes = _from_config(spec, *_configure(spec), attention), {}
            if lora is not None:
                add_adapters(spec.name, module, lora)
    length, seed = train.sequence_length, train.seed
    maker = random_batches(spec, task, module, sequence_length=length, seed=seed)
    return BuiltModel(
        module=module,
        blocks=find_blocks(module),
        task=None if task not in TEXT_TASKS else task,
        vocab_size=None if maker else config.get_text_config().vocab_size,
        batch_maker=maker,
        initial=InitialValues(seed=train.seed, recipes=recipes),
        tensor_plan=tuple(spec.tensor_plan.items()),
    )


def _adapters(spec: ModelSpec, train: TrainSpec) -> LoraSpec | None:
    return adapters_of(train, spec.name, stored_base(spec, raw_config(spec)))


def _with_text(facts: ModelFacts, task: Task, module: Any) -> ModelFacts:
    """Returns the facts with what probes of a small model find."""
    probed = probe_loss(module, task, facts.attentions)
    if not probed.shifts_labels:
        raise ModelError(
            f"{type(module).__name__} does not shift labels: its loss at a token is of that token"
            " itself, so that as a causal-lm it would learn to copy its input"
        )
    config = module.config
    return replace(
        facts,
        vocab_size=config.get_text_config().vocab_size,
        padding_difference=probed.padding or 0.0,
        padding_from=_length_of_first_rope(config),
        batch_difference=probed.batch or 0.0,
        loss_refusal=probed.loss_refusal,
        tile_refusal=probed.tile_refusal,
        bypasses_hooks=bypasses_hooks(module, task),
        attention_differences=probed.attentions,
        step=probed.step and replace(probed.step, **weight_findings(module)),
    )


def _length_of_first_rope(config: Any) -> int:
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or rope.get("rope_type") not in ("dynamic", "longrope"):
        return 0
    own = rope.get("original_max_position_embeddings")
    return int(own or config.max_position_embeddings)


def _configure(spec: ModelSpec) -> tuple[Task, Any]:
    raw = raw_config(spec)
    if spec.trust_remote_code:
        check_remote_code(spec, raw)
    config = make_config(spec.name, config_class(spec, raw), raw, spec.config)
    task = task_of(spec, config)
    if task == "sequence-classification":
        # decoders classify at the last token that is not padding, so this must be the data's
        config.pad_token_id = PAD_TOKEN_ID
        config.get_text_config().pad_token_id = PAD_TOKEN_ID
    return task, config


def _record(
    spec: ModelSpec, task: Task, config: Any, attention: Attention, lora: LoraSpec | None
) -> tuple[nn.Module, dict[str, Recipe]]:
    """Builds the model on the meta device, and records how its code initialises the weights.

    Under `torch.device("meta")` transformers leaves the weights as their modules made them, so
    that its initialisation is called here: before weights are tied, as in a build on the CPU,
    and outside of the meta context, so that values it computes (rotary frequencies) are real.
    """
    with recording() as recorder:
        with no_tie_weights():
            module = _build_on_meta(spec, task, config, attention)
        module.initialize_weights()
    recipes = recorder.recipes(module)
    module.tie_weights(recompute_mapping=False)
    ties: dict[str, str] = module.all_tied_weights_keys
    recipes |= {name: recipes[source] for name, source in ties.items()}
    return module, recipes | (_record_adapters(spec, module, lora) if lora else {})


def _record_adapters(spec: ModelSpec, module: nn.Module, lora: LoraSpec) -> dict[str, Recipe]:
    with recording() as recorder, torch.device("meta"):
        add_adapters(spec.name, module, lora)
    return {
        name: recorder.recipe(name, weight)
        for name, weight in module.named_parameters()
        if weight.requires_grad and original_name(name) == name
    }


def _build_on_meta(spec: ModelSpec, task: Task, config: Any, attention: Attention) -> Any:
    try:
        with torch.device("meta"):
            return _from_config(spec, task, config, attention)
    except BAD_VALUES as error:
        raise ModelError(f"{spec.name} cannot be built: {one_sentence(error)}") from error


def _from_config(spec: ModelSpec, task: Task, config: Any, attention: Attention) -> Any:
    head = HEADS[task]
    runs_own = spec.trust_remote_code and head.__name__ in getattr(config, "auto_map", {})
    return head.from_config(
        config,
        **({"code_revision": spec.revision} if runs_own else {}),
        trust_remote_code=spec.trust_remote_code,
        dtype=torch.float32,
        attn_implementation=attention,
    )
