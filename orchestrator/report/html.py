"""Renderer of HTML pages from templates.

A page is one file that loads nothing: it includes its styles, scripts and data.
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
_DIGITS = 6  # significant digits of a float in a chart, finer than a pixel
_NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A figure at the top of a page: its name, its value and a detail below it."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts: the kind of each column by its title, and the rows.

    Numbers are right-aligned and do not wrap; words and plans are left-aligned.
    """

    columns: Mapping[str, ColumnKind]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)

    def cells(self, row: tuple[str, ...]) -> Iterator[tuple[ColumnKind, str]]:
        """Yields the kind and the text of each cell of a row."""
        for kind, cell in zip(self.columns.values(), row, strict=True):
            yield kind, _on_one_line(cell) if kind == "number" else cell


def render_page(template: str, *, figures: Mapping[str, Figure], **values: object) -> str:
    """Renders a template of `orchestrator/report/templates` that extends `page.jinja`.

    Args:
        template: Its file name.
        figures: Charts by the name of their place in the template.
        values: The other values that the template names, such as `title`. Texts are escaped.

    Raises:
        jinja2.UndefinedError: If a value that the template names is missing.
    """
    rounded = {name: _rounded(figure) for name, figure in figures.items()}
    return _environment().get_template(template).render(figures=rounded, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` also escapes text that could end a script
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {
        "asset": _asset,
        "packed_plotly": _packed_plotly,
        "security_policy": _security_policy(),
    }
    return environment


@cache
def _asset(name: str) -> Markup:
    # these files are part of the package, so they need no escape
    return Markup(files(_PACKAGE).joinpath("static", name).read_text(encoding="utf-8"))


@cache
def _packed_plotly() -> Markup:
    # less than half of its 1.2 MB; `page.js` unpacks it
    return Markup(b64encode(gzip.compress(_asset(_PLOTLY).encode(), mtime=0)).decode())


def _security_policy() -> str:
    # only the two scripts of the page may run, and nothing may be loaded
    texts = (_asset(_PLOTLY), _asset(_SCRIPT))
    hashes = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    scripts = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


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
    # an interval in brackets may wrap to the next line
    return figure.replace(" ", _NO_BREAK).replace(f"{_NO_BREAK}(", " (")
