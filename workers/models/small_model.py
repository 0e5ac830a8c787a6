"""Small models of a class, on which what a model can do is tried, and batches for them."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import Task
from workers.data.collate import IGNORED, PAD_TOKEN_ID
from workers.models.built import seeded
from workers.models.user_code import UserCodeError, user_code_errors

VOCABULARY = 64
_HEAD_SIZE = 8
_HEADS_OF_HALVES = tuple(  # of an encoder and a decoder
    f"{prefix}{half}_attention_heads" for prefix in ("", "num_") for half in ("encoder", "decoder")
)


def small_fields_of(module: Any, task: Task) -> dict[str, Any]:
    """Returns the configuration of a small model of a module's class, for a task's batches."""
    fields = json.loads(module.config.to_json_string(use_diff=False))
    shrunk = small_fields(fields, type(module).config_class)
    shrunk["pad_token_id"] = PAD_TOKEN_ID
    if task == "seq2seq" and shrunk.get("decoder_start_token_id") is None:
        shrunk["decoder_start_token_id"] = PAD_TOKEN_ID
    return shrunk


def small_model(model_class: Any, fields: dict[str, Any], attention: str) -> nn.Module:
    """Returns a model with random values, for evaluation, of a configuration of `small_fields`."""
    config = model_class.config_class.from_dict(fields)
    config.use_cache = False
    model: nn.Module = model_class._from_config(
        config, dtype=torch.float32, attn_implementation=attention
    )
    return model.eval()


def small_fields(fields: dict[str, Any], config_class: Any) -> dict[str, Any]:
    """Returns a configuration with a few narrow layers of each kind, and else unchanged."""
    names: dict[str, str] = config_class.attribute_map
    aliases = {real: alias for alias, real in names.items()}
    small = packaged_table(__package__, "small_fields.yaml")
    shrunk = {
        name: small.get(aliases.get(name, name), value)
        for name, value in fields.items()
        if not name.startswith("_") and name not in ("name_or_path", "architectures")
    }
    _shrink_heads(shrunk, names)
    _shrink_layers(shrunk, names)
    _shrink_rotations(shrunk)
    _shrink_senses(shrunk)
    for name, part in config_class.sub_configs.items():
        if isinstance(shrunk.get(name), dict):
            shrunk[name] = small_fields(shrunk[name], _class_of(part, shrunk[name]))
    return shrunk


def _shrink_heads(fields: dict[str, Any], names: dict[str, str]) -> None:
    heads_name = names.get("num_attention_heads", "num_attention_heads")
    heads, groups = fields.get(heads_name), fields.get("num_key_value_heads")
    fields[heads_name] = 4
    if groups is not None:
        fields["num_key_value_heads"] = {heads: 4, 1: 1}.get(groups, 2)
    for name in _HEADS_OF_HALVES:
        if fields.get(name) is not None:
            fields[name] = 4
    for name in ("head_dim", "d_head", "qk_rope_head_dim"):
        if fields.get(name) is not None:
            fields[name] = 8


def _shrink_layers(fields: dict[str, Any], names: dict[str, str]) -> None:
    if fields.get("block_sizes"):  # Funnel's layers, by the length of their rows
        fields["block_sizes"] = [1] * len(fields["block_sizes"])
        for name in ("num_hidden_layers", "block_repeats"):
            fields.pop(name, None)
        return
    kinds = list(dict.fromkeys(fields.get("layer_types") or ()))  # each kind once
    if kinds:
        fields["layer_types"] = kinds if len(kinds) > 1 else kinds * 2
    layers = names.get("num_hidden_layers", "num_hidden_layers")
    if layers in fields:  # ProphetNet has one number for each half, and refuses their sum
        fields[layers] = max(2, len(kinds))


def _shrink_rotations(fields: dict[str, Any]) -> None:
    """Cuts longrope's factors, one for each pair of a head's rotated elements."""
    rope = fields.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    pairs = int(_HEAD_SIZE * (rope.get("partial_rotary_factor") or 1.0)) // 2
    cut = {name: rope[name][:pairs] for name in ("short_factor", "long_factor") if name in rope}
    if "mrope_section" in rope:  # pairs for time, height and width
        cut["mrope_section"] = [1, 1, 2]
    fields["rope_parameters"] = rope | cut


def _shrink_senses(fields: dict[str, Any]) -> None:
    """Makes images and sounds, and what sees and hears them, small."""
    patch, image = fields.get("patch_size"), fields.get("image_size")
    if isinstance(patch, int) and isinstance(image, int):
        fields["image_size"] = min(8 * patch, image)
    if isinstance(fields.get("num_heads"), int):
        fields["num_heads"] = 4
    if widths := fields.get("conv_dim"):
        fields["conv_dim"] = [32] * len(widths)
    for name in ("mask_time_prob", "mask_feature_prob"):  # draws for a batch, not for each sample
        if fields.get(name):
            fields[name] = 0.0


def _class_of(part: Any, fields: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    return part if hasattr(part, "model_type") else CONFIG_MAPPING[fields["model_type"]]


@contextlib.contextmanager
def tolerated(name: str) -> Iterator[None]:
    """Runs a probe on a small model, whose errors and warnings are not the user's."""
    from transformers.utils import logging as transformers_logging  # a second, not for all models

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with contextlib.suppress(UserCodeError), user_code_errors(name), seeded(0), torch.no_grad():
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def random_tokens(rows: int, length: int) -> torch.Tensor:
    """Returns tokens that are neither padding nor special."""
    return torch.randint(3, VOCABULARY, (rows, length))


def task_inputs(task: Task, tokens: torch.Tensor, lengths: list[int]) -> dict[str, torch.Tensor]:
    """Returns a batch of these tokens with labels; beyond their lengths rows are padded."""
    kept = torch.arange(tokens.shape[1])[None] < torch.tensor(lengths)[:, None]
    inputs = {"input_ids": torch.where(kept, tokens, PAD_TOKEN_ID), "attention_mask": kept.long()}
    if task == "sequence-classification":
        inputs["labels"] = torch.arange(len(lengths)) % 2
    elif task == "seq2seq":  # half as many for the decoder
        half = tokens.shape[1] // 2
        targets = torch.arange(half)[None] < torch.tensor(lengths)[:, None] // 2
        inputs["labels"] = torch.where(targets, tokens[:, :half], IGNORED)
    else:
        inputs["labels"] = torch.where(kept, tokens, IGNORED)
    return inputs
