"""How long a sequence a model has positions for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len")


def stated_positions(config: Any) -> int | None:
    """The longest sequence that the configuration states [tokens], None if it states none."""
    text = config.get_text_config()
    for name in _LENGTH_FIELDS:
        length = getattr(text, name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None


def learned_positions(module: nn.Module) -> int | None:
    """The longest sequence that tables of absolute positions allow [tokens].

    None for models without such a table: rotary and relative positions have no last one.
    Tables that keep rows for themselves (OPT's `offset`, RoBERTa's `padding_idx`) hold fewer
    positions than rows.
    """
    return min(_table_positions(module), default=None)


def _table_positions(module: nn.Module) -> Iterator[int]:
    for name, table in module.named_modules():
        leaf = name.rpartition(".")[2]
        is_position = leaf == "wpe" or ("position" in leaf and "relative" not in leaf)
        if isinstance(table, nn.Embedding) and is_position:
            offset = getattr(table, "offset", 0)
            padding = 0 if table.padding_idx is None else table.padding_idx + 1
            yield table.num_embeddings - max(int(offset), padding)
