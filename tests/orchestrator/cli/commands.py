"""Runs of the command line in this process."""

import pytest

from orchestrator.cli import main


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Returns the exit code of `plimsoll` with these arguments, and its output on one line."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    said = capsys.readouterr()
    return int(caught.value.code or 0), " ".join((said.out + said.err).split())
