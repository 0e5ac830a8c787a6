"""Bars of characters: how much of something is used."""

from __future__ import annotations

from rich.text import Text

_LONGEST = 60  # characters; a longer bar says no more


def budget_bar(share: float, width: int, told: str) -> Text:
    """A bar of `share` 0 to 1, and what is told after it, in `width` characters together."""
    length = _length(width, told)
    filled = round(min(max(share, 0.0), 1.0) * length)
    return Text.assemble(("━" * filled, "cyan"), ("─" * (length - filled), "bright_black"), told)


def memory_bar(share: float, line: float, width: int, told: str) -> Text:
    """Peak over limit with the line marked that the head-room draws.

    Args:
        share: Peak over limit; beyond 1 the bar is full.
        line: Share of the limit that may be used, 0 to 1: the load line.
        width: Characters for bar and words.
        told: What is said after the bar.
    """
    length = _length(width, told)
    filled = round(min(max(share, 0.0), 1.0) * length)
    mark = min(round(line * length), length - 1)
    colour = "green" if share <= line else "yellow" if share <= 1 else "red"
    bar = Text()
    for cell in range(length):
        if cell == mark:
            bar.append("┃", "bold red")
        elif cell < filled:
            bar.append("█", colour)
        else:
            bar.append("░", "bright_black")
    return bar.append(told)


def _length(width: int, told: str) -> int:
    return max(min(width - len(told), _LONGEST), 1)
