"""Commands and links of the texts for coding agents, checked against the real command line."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from orchestrator.cli.app import app

ROOT = Path(__file__).parent.parent
TEXTS = ("llms.txt", "skills/plimsoll/SKILL.md")


@pytest.mark.parametrize("name", TEXTS)
def test_commands_and_links_for_agents_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    group = typer.main.get_command(app)
    commands = re.findall(r"`plimsoll ([^`]+)`|^ {7}plimsoll (.+)$", text, re.MULTILINE)

    assert len(commands) >= 8
    for words in (shlex.split(inline or block) for inline, block in commands):
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        command.make_context(words[0], words[1:])
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / link).exists(), link
