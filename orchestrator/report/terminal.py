"""Renderer of documents for terminals, and output of texts that somebody else may have written.

Names and messages come from specifications, models and shared databases. On a terminal, control
characters in them move the cursor, set the title or the clipboard, or reverse what is read.
"""

import re
from collections.abc import Iterable
from typing import Any, final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from orchestrator.report.sections import Block, Code, Document, Table

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of reading
_SEPARATORS = "\u2028\u2029"
_SURROGATES = r"\ud800-\udfff"  # half a character, which nothing can encode
# not \t and \n
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_SEPARATORS}{_SURROGATES}]")
_COLOR = re.compile(r"(\x1b\[[0-9;]*m|\r\n?)")  # and the line ends of progress bars
_PICTURES = 0x2400  # U+241B is a picture of ESC, and so on
_DELETE, _DELETE_PICTURE = 0x7F, "\u2421"
_UNKNOWN = "\ufffd"
_INDENT = (0, 0, 0, 2)


def without_controls(text: str) -> str:
    """Returns a text whose control and bidi characters can be seen and have no effect."""
    return _CONTROL.sub(_picture, text)


def log_without_controls(text: str) -> str:
    """Returns a piece of a log without control characters, except for colors and line ends."""
    parts = _COLOR.split(text)  # every other one is a color or an end
    parts[::2] = map(without_controls, parts[::2])
    return "".join(parts)


def json_without_controls(document: str) -> str:
    """Returns a JSON document with escapes for control characters, which it means all the same."""
    return _CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", document)


def _picture(control: re.Match[str]) -> str:
    code = ord(control[0])
    if code < ord(" "):
        return chr(_PICTURES + code)
    return _DELETE_PICTURE if code == _DELETE else _UNKNOWN


@final
class SafeConsole(Console):
    """Console that writes no control characters but its own."""

    def on_broken_pipe(self) -> None:
        """Lets the command line end the command, as for every other write."""
        raise  # noqa: PLE0704  # rich calls it where it handles the error

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Renders an object; its texts lose their control characters."""
        for segment in super().render(*arguments, **options):
            if segment.control is None and _CONTROL.search(segment.text):
                yield Segment(without_controls(segment.text), segment.style)
            else:
                yield segment


def render_text(document: Document) -> RenderableType:
    """Renders a document, narrow enough for 80 columns and plain enough for a log."""
    parts: list[RenderableType] = [Rule(Text(document.title), align="left")]
    parts += map(Text, document.facts)
    if document.understood:
        parts += [labelled_rows(document.understood), Text()]
    parts.append(Text(document.headline, "bold"))
    parts += [Text(f"note: {note}", "yellow") for note in document.notes]
    for section in document.sections:
        if section.blocks and not section.folded:
            if section.title:
                parts.append(Text(f"\n{section.title}", "bold cyan"))
            indent = _INDENT if section.title else 0
            parts += (Padding(_block(one), indent, expand=False) for one in section.blocks)
    if document.footer:
        parts.append(Text(f"\n{document.footer}", "bright_black"))
    return Group(*parts)


def _block(block: Block) -> RenderableType:
    match block:
        case Table():
            return render_table(block)
        case Code(text=text):  # to be copied whole
            return Text(text, "bold", no_wrap=True, overflow="ignore")
        case _:
            return Text(block)


def render_table(table: Table) -> Grid:
    """Renders a table without side borders."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name, kind in table.columns:
        number = kind == "number"
        grid.add_column(name, justify="right" if number else "left", no_wrap=number)
    for index, row in enumerate(table.rows):
        grid.add_row(*map(Text, row), style="bold" if index in table.bold else "")
    return grid


def labelled_rows(rows: Iterable[tuple[str, str]]) -> Grid:
    """Renders rows of a label and words."""
    grid = Grid.grid(padding=(0, 2))
    for label, words in rows:
        grid.add_row(Text(label, "bold"), Text(words))
    return grid
