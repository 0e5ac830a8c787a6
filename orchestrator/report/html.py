"""Renders pages from templates.

A page is one file that loads nothing: styles, scripts and data are part of it.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.report.charts import Figure

ColumnKind = Literal["number", "words", "plan"]

_PACKAGE = "orchestrator.report"
_PLOTLY = "plotly/plotly-basic.min.js"
_SCRIPT = "page.js"
_DIGITS = 6  # significant digits of a float in a chart: finer than a pixel
_NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure at the head of a page: its name, its value, and a detail below it."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts: the kind of each column by its title, and the rows.

    Numbers stand to the right and each on one line, words and plans to the left.
    """

    columns: Mapping[str, ColumnKind]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)

    def cells(self, row: tuple[str, ...]) -> Iterator[tuple[ColumnKind, str]]:
        """Kind and text of each cell of a row."""
        for kind, cell in zip(self.columns.values(), row, strict=True):
            yield kind, _on_one_line(cell) if kind == "number" else cell


def render_page(template: str, *, figures: Mapping[str, Figure], **values: object) -> str:
    """Renders a template of `orchestrator/report/templates` that extends `page.jinja`.

    Args:
        template: Its file name.
        figures: Charts by the name of the place where the template puts them.
        values: What else the template names, the page's `title` among it. Texts are escaped.

    Raises:
        jinja2.UndefinedError: If the template names a value that is not given.
    """
    drawn = {name: _rounded(figure) for name, figure in figures.items()}
    return _environment().get_template(template).render(figures=drawn, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` also escapes what could end a script
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {
        "asset": _asset,
        "packed_plotly": _packed_plotly,
        "security_policy": _security_policy(),
    }
    return environment


@cache
def _asset(name: str) -> Markup:
    """Text of a file of `orchestrator/report/static`, which is ours and goes unescaped."""
    return Markup(files(_PACKAGE).joinpath("static", name).read_text(encoding="utf-8"))


@cache
def _packed_plotly() -> Markup:
    """plotly.js as base64 of gzip, less than half of its 1.2 MB, which `page.js` unpacks."""
    return Markup(b64encode(gzip.compress(_asset(_PLOTLY).encode(), mtime=0)).decode())


def _security_policy() -> str:
    """Content security policy of a page: its two scripts run, nothing else does or is loaded."""
    texts = (_asset(_PLOTLY), _asset(_SCRIPT))
    hashes = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    scripts = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:"


def _rounded(value: object) -> object:
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {key: _rounded(part) for key, part in value.items()}
        case list() | tuple():
            return [_rounded(part) for part in value]
        case _:
            return value


def _on_one_line(figure: str) -> str:
    """The figure with spaces that do not break; an interval in brackets may have its own line."""
    return figure.replace(" ", _NO_BREAK).replace(f"{_NO_BREAK}(", " (")
