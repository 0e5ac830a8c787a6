"""The command line: `plimsoll`."""

from orchestrator.cli.app import main

__all__ = ["main"]
