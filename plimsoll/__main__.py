"""Starts the command line, unless another distribution has overwritten a part of it."""

from __future__ import annotations

import sys
from typing import NoReturn

from plimsoll.installed import collisions, unsupported_versions

EXIT_USER_ERROR = 2


def main() -> NoReturn:
    """Checks the installed distributions, then runs the command line and exits."""
    try:
        if told := collisions():
            sys.stderr.write(f"{told}\n")
            sys.exit(EXIT_USER_ERROR)
        if told := unsupported_versions():
            sys.stderr.write(f"{told}\n")
        from orchestrator.cli import main as run  # another distribution's until it was checked
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
