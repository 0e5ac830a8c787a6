"""Output to terminals of texts that somebody else may have written.

Names and messages come from specifications, models and shared databases. On a terminal, control
characters in them move the cursor, set the title or the clipboard, or reverse what is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, final

from rich.console import Console
from rich.segment import Segment

_TEXT = "\t\n"  # controls that belong to texts
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of reading
_SEPARATORS = "\u2028\u2029"
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_SEPARATORS}]")
_COLOR = re.compile(r"(\x1b\[[0-9;]*m|\r\n?)")  # and the line ends of progress bars
_PICTURES = 0x2400  # U+241B is a picture of ESC, and so on
_DELETE, _DELETE_PICTURE = 0x7F, "\u2421"
_UNKNOWN = "\ufffd"


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

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Renders an object; its texts lose their control characters."""
        for segment in super().render(*arguments, **options):
            if segment.control is None and _CONTROL.search(segment.text):
                yield Segment(without_controls(segment.text), segment.style)
            else:
                yield segment
