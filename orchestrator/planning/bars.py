"""Bars of characters: what a peak is made of, against the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.text import Text

LETTERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "weights": ("W", "black on cyan"),
        "gradients": ("G", "black on blue"),
        "optimizer": ("O", "black on magenta"),
        "gathered": ("w", "black on bright_cyan"),
        "activations": ("A", "black on green"),
        "temporaries": ("T", "black on yellow"),
        "buffers": ("B", "black on bright_blue"),
        "outside": ("C", "black on white"),
        "fragmentation": ("F", "black on bright_black"),
    }
)
"""A letter for each category, so that a bar can be read without colours."""
_OTHER = ("?", "black on white")


def category_bar(held: Sequence[tuple[str, float]], limit: float, line: float, length: int) -> Text:
    """A bar of `length` characters that stands for the limit, a letter for each part of the peak.

    Args:
        held: Bytes by category.
        limit: Bytes that the whole bar stands for; a larger peak fills it.
        line: Bytes at which the load line is drawn.
        length: Characters.
    """
    bar, ends, total = Text(), [], 0.0
    for name, size in held:
        total += size
        ends.append((name, total / limit * length))
    mark = min(round(line / limit * length), length - 1)
    for cell in range(length):
        part = next((name for name, end in ends if end >= cell + 0.5), None)
        if part is None:
            bar.append("┃" if cell == mark else "·", "bold red" if cell == mark else "bright_black")
        else:
            letter, style = LETTERS.get(part, _OTHER)
            bar.append(letter, style if cell < mark else "black on red")
    return bar


def legend() -> Text:
    """What the letters stand for."""
    from orchestrator.planning.words import category_words

    told = Text()
    for name, (letter, style) in LETTERS.items():
        told.append(letter, style).append(f" {category_words(name)}  ")
    return told
