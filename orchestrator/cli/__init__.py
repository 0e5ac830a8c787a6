"""The command line: `plimsoll`."""

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits; see `orchestrator.cli.app`."""
    try:
        from orchestrator.cli.app import main as run  # takes a second: Ctrl-C may arrive here
    except KeyboardInterrupt:
        sys.exit(130)
    run(arguments)
