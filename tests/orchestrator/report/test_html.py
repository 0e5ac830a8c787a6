"""Pages are self-contained, stay small and escape what users typed."""

import gzip
import re
from base64 import b64decode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.report import html
from orchestrator.report.charts import hover_text
from orchestrator.report.html import render_page
from orchestrator.report.sections import Document, Section
from orchestrator.report.sweep_document import report_page
from tests.orchestrator.explain.values import a_ground, a_state
from tests.orchestrator.report.pages import HOSTILE, figures_of
from tests.orchestrator.report.values import TRIED

PLOTLY = Path(html.__file__).parent / "static" / "plotly"
MOST_BYTES = 1_300_000
CHARTS = {"trials", "progress", "memory", "time", "speed-memory"}


class Tags(HTMLParser):
    """The tags of a page, the addresses they load, and code in their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def one_chart(name: str) -> str:
    figure = {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [0.123456789, 2],
                "y": [1e-9, 3.0],
                "text": [hover_text(name, name), name],
            }
        ],
        "layout": {"height": 300, "xaxis": {}, "yaxis": {}},
    }
    section = Section(title=name, chart="one", caption=name)
    document = Document(title=name, headline=name, sections=(section,))
    return render_page(document, {"one": figure})


def test_the_pages_have_every_chart_and_are_small(pages: dict[str, str]) -> None:
    assert {name for page in pages.values() for name in figures_of(page)} == CHARTS
    many = a_state(TRIED * 100)
    long = report_page(many, a_ground(many))

    assert len(figures_of(long)["trials"]["data"][1]["x"]) == 400
    assert max(len(page.encode()) for page in (long, *pages.values())) < MOST_BYTES


def test_pages_load_nothing(pages: dict[str, str]) -> None:
    for page in pages.values():
        tags = Tags(page)
        style = page.split("<style>")[1].split("</style>")[0]

        assert tags.loads == []
        assert set(tags.names).isdisjoint({"link", "img", "iframe", "object", "embed", "base"})
        assert "url(" not in style
        assert "@import" not in style
        assert "default-src &#39;none&#39;" in page


def test_what_users_typed_stays_text(pages: dict[str, str]) -> None:
    for page in pages.values():
        tags = Tags(page)

        assert tags.names.count("script") == page.count("</script>") == 3
        assert tags.handlers == []
        assert "49" not in re.findall(r"<title>(.*?)</title>", page, re.S)[0]
        assert HOSTILE not in page
        assert "&lt;/script&gt;&lt;script&gt;pwned" in page


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20))
@example("</script><!--<script>")
def test_any_name_can_be_read_back(name: str) -> None:
    page = one_chart(name)
    (trace,) = figures_of(page)["one"]["data"]

    assert trace["name"] == trace["text"][1] == name
    assert page.count("<script") == page.count("</script>") == 3
    assert "<!--" not in page


def test_n9_no_control_character_or_half_character_reaches_the_page() -> None:
    page = one_chart("red \x1b[31m \x9b31m \u202e half \udce9")

    assert "red \u241b[31m \ufffd31m \ufffd half \ufffd" in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)


def test_the_basic_bundle_draws_every_trace(pages: dict[str, str]) -> None:
    bundle = (PLOTLY / "plotly-basic.min.js").read_text(encoding="utf-8")
    able = set(re.findall(r'moduleType:"trace",name:"(\w+)"', bundle))
    used = {
        trace["type"]
        for page in pages.values()
        for figure in figures_of(page).values()
        for trace in figure["data"]
    }

    assert used == {"scatter", "bar"}
    assert used <= able


def test_only_the_pages_own_scripts_may_run() -> None:
    page = one_chart("x")
    packed = page.split('id="plotly">')[1].split("</script>")[0]
    ours = page.split("<script>")[1].split("</script>")[0]
    allowed = re.findall(r"sha256-([\w+/=]+)", page)

    texts = (gzip.decompress(b64decode(packed)), ours.encode())
    assert [b64decode(digest) for digest in allowed] == [sha256(text).digest() for text in texts]
    assert "unsafe-inline" not in page.split("script-src")[1].split(";")[0]
