"""Names and messages of somebody else do not control the terminal."""

import io
import json

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.cli import console
from orchestrator.cli.result import Result, result_to_json
from orchestrator.report.terminal import SafeConsole, log_without_controls, without_controls

# clears the screen, sets the title, writes the clipboard, rings, reverses, as one C1 character
HOSTILE = "a\x1b[2J\x1b]0;t\x07\x1b]52;c;ZXZpbA==\x07\x08\x7f\x9b2J\u202egpj.exe\u2066\u200f z"
CONTROLS = set("\x1b\x07\x08\x7f\x9b\u202e\u2066\u200f")


def test_s9_controls_are_shown_and_have_no_effect() -> None:
    assert without_controls("\x1b[2J\x7f\x9b\u202e\n\tä") == "\u241b[2J\u2421\ufffd\ufffd\n\tä"
    assert CONTROLS.isdisjoint(without_controls(HOSTILE))


@pytest.mark.parametrize("terminal", [True, False])
def test_s9_tables_lines_and_live_views_control_nothing(terminal: bool) -> None:
    out = io.StringIO()
    safe = SafeConsole(file=out, force_terminal=terminal, color_system=None, width=200)
    table = Table("name")
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    safe.print(table)
    safe.print(HOSTILE, markup=False)
    with Live(Text(HOSTILE), console=safe, transient=True):
        pass

    written = out.getvalue()
    assert "\u241b[2J" in written
    assert "\x1b]" not in written
    assert "\x1b[2J" not in written
    assert (CONTROLS - {"\x1b"}).isdisjoint(written)
    assert terminal or "\x1b" not in written


def test_s9_messages_of_the_command_line_control_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.print_line(HOSTILE)
    console.print_error(HOSTILE)
    console.table_console().print(Text(HOSTILE))

    said = capsys.readouterr()
    assert CONTROLS.isdisjoint(said.out + said.err)


def test_s9_logs_of_jobs_keep_their_colors_alone() -> None:
    log = f"\x1b[36m(pid=7)\x1b[0m 50 %\r100 %\r\n{HOSTILE}"

    shown = log_without_controls(log)

    assert shown.startswith("\x1b[36m(pid=7)\x1b[0m 50 %\r100 %\r\n")
    assert CONTROLS.isdisjoint(shown.partition("\n")[2])


def test_s9_json_for_terminals_means_the_same() -> None:
    document = result_to_json(Result(kind="test", content=lambda: {"name": HOSTILE, "ä": "ö"}))

    assert CONTROLS.isdisjoint(document)
    assert json.loads(document)["result"] == {"name": HOSTILE, "ä": "ö"}
    assert "ä" in document
