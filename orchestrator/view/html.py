"""Pages that need nothing else: Plotly is part of them, no script or style is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from plotly.offline import get_plotlyjs

from orchestrator.view.page_frame import PAGE, SCRIPT, STYLE

_WORDS = "words"  # the class of cells that hold words, and of those that hold plans
_PLAN = "words plan"
_NO_BREAK = "\N{NO-BREAK SPACE}"


def whole_page(title: str, body: Iterable[str], figures: Mapping[str, Any]) -> str:
    """The HTML of a page whose charts are drawn in the places of their names."""
    return PAGE.format(
        title=escape(title),
        style=STYLE,
        body="".join(body),
        plotly=get_plotlyjs(),
        figures=script_json(dict(figures)),
        script=SCRIPT,
    )


def script_json(value: Any) -> str:
    """A value as JSON that may stand in a script: no text in it can end the script."""
    return json.dumps(value, allow_nan=False).replace("</", "<\\/")


def tiles(told: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Figures side by side: what it is, the figure, and what to say beside it."""
    yield '<div class="tiles">'
    for name, value, more in told:
        yield (
            f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
            f"<small>{escape(more)}</small></div>"
        )
    yield "</div>"


def chart(name: str, title: str, caption: str) -> Iterator[str]:
    """The place of a chart, under its title."""
    yield f'<section><h2>{escape(title)}</h2><p class="caption">{escape(caption)}</p>'
    yield f'<div class="chart" id="{name}"></div></section>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Iterable[str] = ()
) -> Iterator[str]:
    """A table; columns of numbers stand to the right, those of these names are words.

    A column that is called plan, or ends so, holds plans.
    """
    said = set(words)
    kinds = [_PLAN if cell.endswith("plan") else _WORDS if cell in said else "" for cell in head]
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(
        f'<th class="{kind}">{escape(cell)}</th>' for kind, cell in zip(kinds, head, strict=True)
    )
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = zip(kinds, row, strict=True)
        told = "".join(f'<td class="{kind}">{_cell(kind, cell)}</td>' for kind, cell in cells)
        yield f"<tr>{told}</tr>"
    yield "</tbody></table></div>"


def _cell(kind: str, told: str) -> str:
    """A figure stays on one line; an interval in brackets may have one of its own."""
    if kind:
        return escape(told)
    return escape(told.replace(" ", _NO_BREAK).replace(f"{_NO_BREAK}(", " ("))


def bullets(title: str, sentences: Iterable[str]) -> Iterator[str]:
    """A section of sentences; nothing where there are none."""
    told = list(sentences)
    if told:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in told)
        yield f"<section><h2>{escape(title)}</h2><ul>{items}</ul></section>"


def notes(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences that have to be seen before the rest."""
    yield from (f'<p class="note">{escape(sentence)}</p>' for sentence in sentences)
