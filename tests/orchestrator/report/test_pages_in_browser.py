"""Every page in Chromium: all charts draw without errors, also at the width of a phone."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.report.pages import HOSTILE, figures_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1600,1000", "--allow-file-access-from-files", "--enable-logging=stderr"),
    "--virtual-time-budget=60000",  # milliseconds that do not pass while nothing is done
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]


def browse(
    pages: dict[str, str], widths: tuple[int, ...], folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """Returns the findings of `look.js` for each page and width, and the console output."""
    for number, page in enumerate(pages.values()):
        (folder / f"{number}.html").write_text(page, encoding="utf-8")
    given = f"const PAGES = {[f'{at}.html' for at in range(len(pages))]};"
    given += f"const WIDTHS = {list(widths)};"
    script = Path(__file__).with_name("look.js").read_text(encoding="utf-8")
    (folder / "all.html").write_text(f"<body><script>{given}{script}</script></body>")
    ran = _opened(f"file://{folder / 'all.html'}", folder)
    found = re.search(r'<pre id="found">(.*?)</pre>', ran.stdout, re.S)
    assert found is not None, ran.stdout[-2000:] + ran.stderr[-2000:]
    told: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    by_name = {name: told[f"{number}.html"] for number, name in enumerate(pages)}
    return by_name, [line for line in ran.stderr.splitlines() if ":CONSOLE:" in line]


def text_of(address: str, folder: Path) -> str:
    """Returns what a page shows once its scripts have drawn it, a line for each element."""
    page = re.sub(r"<(script|style).*?</\1>", "", _opened(address, folder).stdout, flags=re.S)
    lines = (line.strip() for line in re.sub("<[^>]+>", "\n", page).splitlines())
    return html.unescape("\n".join(filter(None, lines)))


def _opened(address: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Opens a page with a profile in a folder; its document is in `stdout`."""
    profile = f"--user-data-dir={folder / 'profile'}"
    command = (str(CHROMIUM), *FLAGS, profile, "--dump-dom", address)
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)


@pytest.mark.parametrize("widths", [(390, 1400), (820, 1000, 2000)], ids=str)
def test_every_chart_is_drawn_at_every_width(
    pages: dict[str, str], widths: tuple[int, ...], tmp_path: Path
) -> None:
    found, console = browse(pages, widths, tmp_path)

    assert not console
    for name, page in pages.items():
        for width in widths:
            seen = found[name][str(width)]
            where = f"{name} at {width} pixels"
            for chart, figure in figures_of(page).items():
                drawn = {"traces": len(figure["data"]), "faults": [], "inside": True}
                assert seen["charts"][chart] == drawn, f"{chart} of {where}"
            assert seen["sideways"] == 0, where
            assert not seen["taken_over"], where
            assert seen["images"] == 0, where
            assert HOSTILE in seen["title"]
