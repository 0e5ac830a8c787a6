"""A transformers configuration, made from raw fields and the spec's changes to them."""

import dataclasses
import difflib
import inspect
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from search_spaces.errors import ModelError
from workers.models.user_code import error_text

RawConfig = dict[str, Any]

# Raised by a configuration class or a model's constructor for values that it cannot use.
BAD_VALUES: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,  # includes NotImplementedError
    StrictDataclassError,
    TypeError,
    ValueError,
)

# Fields that say how a model is run; the plan, the task or the name decides them.
_DECIDED_ELSEWHERE = frozenset(
    {
        *("architectures", "auto_map", "dtype", "model_type", "quantization_config"),
        *("torch_dtype", "transformers_version", "use_cache"),
    }
)


def make_config(name: str, config_class: Any, raw: RawConfig, changes: RawConfig) -> Any:
    """Makes and checks the configuration object of model `name`: `raw` with `changes`.

    The changes go in before the object is made, so that fields derived from them follow.

    Raises:
        ModelError: On a change to an unknown field, naming the nearest known one, or on a
            value that the architecture cannot have.
    """
    aliases: dict[str, str] = getattr(config_class, "attribute_map", {})
    changes = {aliases.get(field, field): value for field, value in changes.items()}
    _refuse_unknown(config_class, raw, changes)
    merged = _merge(raw, changes)
    layer_types = merged.get("layer_types")
    if "num_hidden_layers" in changes and "layer_types" not in changes and layer_types:
        merged["layer_types"] = layer_types[: changes["num_hidden_layers"]]
    if "vocab_size" in changes:
        merged.update(_unset_ids_beyond_vocabulary(merged))
    if "rope_parameters" in changes:
        merged = {key: merged[key] for key in merged if key not in ("rope_theta", "rope_scaling")}
    try:
        config = config_class.from_dict({**merged, "name_or_path": name})
    except BAD_VALUES as error:
        raise ModelError(f"{name} cannot have this model.config: {one_sentence(error)}") from error
    config.use_cache = False
    config.get_text_config().use_cache = False
    _refuse_odd_heads(name, config.get_text_config())
    return config


def one_sentence(error: BaseException) -> str:
    """Returns an error's message on one line, without the wrapping of transformers' validators."""
    if isinstance(error, KeyError):  # its text is the key alone
        return f"{error} is not known"
    lines = [line.strip() for line in error_text(error).splitlines() if line.strip()]
    if isinstance(error, StrictDataclassError) and len(lines) > 1:
        lines = [lines[1].partition(": ")[2] or lines[1]]
    text = " ".join(lines) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _refuse_unknown(config_class: Any, raw: RawConfig, changes: RawConfig) -> None:
    aliases: dict[str, str] = getattr(config_class, "attribute_map", {})
    fields = {*raw, "num_labels", *aliases, *aliases.values()}
    if dataclasses.is_dataclass(config_class):
        fields |= {field.name for field in dataclasses.fields(config_class)}
    fields |= set(inspect.signature(config_class.__init__).parameters) - {"self", "kwargs"}
    if "rope_parameters" in fields:
        fields |= {"rope_theta", "rope_scaling"}
    for field in changes:
        if field in _DECIDED_ELSEWHERE:
            raise ModelError(f"model.config.{field} cannot be set: Plimsoll decides it itself")
        if field not in fields:
            (nearest,) = difflib.get_close_matches(field, sorted(fields), n=1, cutoff=0.0)
            raise ModelError(
                f"model.config.{field} is not a field of {config_class.__name__},"
                f" did you mean {nearest}?"
            )


def _merge(raw: RawConfig, changes: RawConfig) -> RawConfig:
    merged = dict(raw)
    for field, value in changes.items():
        old = merged.get(field)
        is_part = isinstance(old, dict) and isinstance(value, dict)
        merged[field] = _merge(old, value) if is_part else value  # type: ignore[arg-type]
    return merged


def _unset_ids_beyond_vocabulary(fields: RawConfig) -> RawConfig:
    """Unsets the special tokens that a smaller vocabulary no longer has."""
    size = fields["vocab_size"]
    return {
        name: None
        for name, value in fields.items()
        if name.endswith("_token_id") and isinstance(size, int) and isinstance(value, int)
        if value >= size
    }


def _refuse_odd_heads(name: str, config: Any) -> None:
    """Refuses head counts that transformers accepts but that fail in the first forward pass."""
    heads = getattr(config, "num_attention_heads", None)
    groups = getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(groups, int) and (groups < 1 or heads % groups):
        raise ModelError(
            f"{name} cannot have this model.config: num_attention_heads is {heads},"
            f" must be a multiple of num_key_value_heads, which is {groups}"
        )
    head_dim = getattr(config, "head_dim", None)
    if getattr(config, "rope_parameters", None) and isinstance(head_dim, int) and head_dim % 2:
        raise ModelError(
            f"{name} cannot have this model.config: head_dim (hidden_size / num_attention_heads)"
            f" is {head_dim}, must be even for rotary positions"
        )
