"""Which view suits the place where the output goes."""

from __future__ import annotations

import sys

from rich.console import Console

from orchestrator.listener import AbstractListener
from orchestrator.view.live import LiveView
from orchestrator.view.plain import PlainView


def make_view(plain: bool = False) -> AbstractListener:
    """A live view where stdout is a terminal that can move its cursor, plain lines elsewhere.

    Args:
        plain: Lines even on a terminal.
    """
    console = Console()
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainView(sys.stdout)
    return LiveView(console)
