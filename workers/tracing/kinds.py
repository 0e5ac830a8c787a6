"""Which blocks of a model are alike, so that one of them tells about all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

_Settings = dict[tuple[str, str], Any]  # by module and attribute


def alike(blocks: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Places of blocks by kind: of one class, shapes, precision and settings.

    A number that counts the blocks is no setting. The first block of all is a kind of its own:
    what it is given may be of another precision, and may want no gradient.
    """
    settings = [_settings(block) for block in blocks]
    counts = _counting(settings)
    found: dict[Any, list[int]] = {}
    for place, block in enumerate(blocks):
        told = {key: value for key, value in settings[place].items() if key not in counts}
        kind = (place == 0, _shapes(block), tuple(sorted(told.items(), key=lambda item: item[0])))
        found.setdefault(kind, []).append(place)
    return tuple(map(tuple, found.values()))


def _shapes(block: nn.Module) -> tuple[Any, ...]:
    return tuple(
        (name, type(part).__qualname__, key, weight.shape, weight.dtype, weight.requires_grad)
        for name, part in block.named_modules()
        for key, weight in (part._parameters or {"": None}).items()
        if weight is not None
    )


def _settings(block: nn.Module) -> _Settings:
    """Plain attributes; of fractions, such as chances of dropout, only whether they are 0."""
    found: _Settings = {}
    for name, part in block.named_modules():
        found[name, "class"] = type(part).__qualname__
        for key, value in vars(part).items():
            if isinstance(value, bool | int | str | None):
                found[name, key] = repr(value)
            elif isinstance(value, float):
                found[name, key] = repr(bool(value))
    return found


def _counting(settings: Sequence[Mapping[tuple[str, str], Any]]) -> frozenset[tuple[str, str]]:
    """Attributes that are another whole number in each block, one more from block to block."""
    first = settings[0] if settings else {}
    return frozenset(
        key
        for key, value in first.items()
        if value.isdigit()
        and len(settings) > 1
        and all(told.get(key) == str(int(value) + place) for place, told in enumerate(settings))
    )
