"""Shape of a model, as its configuration states it: columns of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from search_spaces.spec.schema import ModelSpec
from workers.models import function
from workers.models.config import make_config
from workers.models.config_source import config_class, raw_config

_HEADS = ("num_attention_heads", "num_heads", "n_head")
_KEY_HEADS = ("num_key_value_heads",)
_FEED_FORWARD = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "d_ff", "n_inner")
_FEED_FORWARD_MULTIPLE = 4  # of the width, if the configuration leaves it out, as GPT-2's does


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Widths and heads of a model's blocks; None if its configuration does not state them."""

    hidden: int | None = None
    heads: int | None = None
    key_value_heads: int | None = None
    feed_forward: int | None = None


def shape_of(spec: ModelSpec) -> ModelShape:
    """Returns the shape that a model's configuration states; all None for a user's function.

    Raises:
        ModelError: If the model cannot be found or configured.
    """
    if function.is_function(spec):
        return ModelShape()
    raw = raw_config(spec)
    config = make_config(spec.name, config_class(spec, raw), raw, spec.config).get_text_config()
    hidden, heads = _first(config, ("hidden_size",)), _first(config, _HEADS)
    feed_forward = _first(config, _FEED_FORWARD)
    return ModelShape(
        hidden=hidden,
        heads=heads,
        key_value_heads=_first(config, _KEY_HEADS) or heads,
        feed_forward=feed_forward or (hidden and _FEED_FORWARD_MULTIPLE * hidden),
    )


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)
