"""Renderer of documents as HTML pages.

A page is one file that loads nothing: it includes its styles, scripts and data.
"""

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.report.charts import Figure
from orchestrator.report.sections import Document
from orchestrator.report.terminal import without_controls

_PACKAGE = "orchestrator.report"
_PLOTLY = "plotly/plotly-basic.min.js"
_SCRIPT = "page.js"


def render_page(document: Document, figures: Mapping[str, Figure]) -> str:
    """Renders a document as the HTML of a page, with its charts by name.

    Charts get six significant digits, finer than a pixel.
    """
    rounded = json.loads(json.dumps(figures), parse_float=lambda text: float(f"{float(text):.6g}"))
    headline = f"{document.headline[:1].upper()}{document.headline[1:]}"
    page = _environment().get_template("document.jinja")
    return without_controls(page.render(document=document, headline=headline, figures=rounded))


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
