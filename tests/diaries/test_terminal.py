"""A terminal user's diary: a sweep under a pseudo-terminal, its pages in a browser, and Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pexpect
import pyte
import pytest

import plimsoll
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.core.records import Record
from orchestrator.report.sweep_document import report_page
from search_spaces.trial import Estimate, Measured
from tests.orchestrator.cli.commands import command
from tests.orchestrator.cli.test_tune import HEAVY, imported
from tests.orchestrator.report.test_pages_in_browser import CHROMIUM, browse, text_of
from tests.rigs.mlflow_server import serves
from tests.rigs.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("plimsoll"))
COLUMNS, LINES = 100, 30
SECONDS = 800
SPEC = """
model: {name: gpt2, config: {n_embd: 32, n_layer: 1, n_head: 2, n_positions: 32, vocab_size: 300}}
cluster: {workers: 1, device: cpu}
train: {global_batch: 8, sequence_length: 32, precision: fp32}
space: {micro_batch: [8], loader_workers: [0, 1], checkpoint_ratio: [0], attention: [sdpa, eager]}
objective: {max_seconds: 1}  # shorter trials may end before the screen is drawn again
validation: {enabled: false, repeats: 0}
"""
pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A command that ended: its code, all that it wrote, and the screens that a user saw."""

    code: int | None
    written: str
    screens: tuple[str, ...]


def watch(folder: Path, *words: str, interrupt_at: str | None = None) -> Watched:
    """Runs a command in a terminal; Ctrl-C comes when the screen has some words."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "GIT_PAGER"):
        kept.pop(name, None)
    child = pexpect.spawn(
        words[0],
        list(words[1:]),
        cwd=folder,
        env={**kept, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        dimensions=(LINES, COLUMNS),
        timeout=SECONDS,
    )
    terminal = pyte.Screen(COLUMNS, LINES)
    stream, written, screens = pyte.ByteStream(terminal), b"", [""]
    while True:
        try:
            chunk = child.read_nonblocking(65536, timeout=SECONDS)
        except pexpect.EOF:
            break
        written += chunk
        for part in chunk.splitlines(keepends=True):
            stream.feed(part)
            screen = "\n".join(line.rstrip() for line in terminal.display)
            if screen != screens[-1]:
                screens.append(screen)
        if interrupt_at is not None and interrupt_at in screens[-1]:
            interrupt_at = None
            child.sendintr()
    child.close()
    return Watched(code=child.exitstatus, written=written.decode(), screens=tuple(screens))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("terminal")
    (made / "mine.yaml").write_text(SPEC)
    return made


@pytest.fixture(scope="module")
def swept(folder: Path) -> Watched:
    return watch(folder, PROGRAM, "tune", "mine.yaml", "--trials", "2")


def rows(screen: str, label: str) -> list[str]:
    return re.findall(rf"^{label} +(.*)", screen, re.MULTILINE)


def test_the_screen_says_what_happens_to_the_end(swept: Watched, folder: Path) -> None:
    assert swept.code == ExitCode.DONE
    words = ("reading the model", "starting Ray", "trial 0 [1 of 2]", "starting 1 worker")
    first = [
        next(at for at, screen in enumerate(swept.screens) if part in screen)
        for part in (*words, "trial 1 [2 of 2]")
    ]
    assert first == sorted(first)

    trials = [rows(screen, "trials")[0] for screen in swept.screens if rows(screen, "trials")]
    assert trials[0].endswith("─ 0 of 2")
    assert re.fullmatch("━+ 2 of 2", trials[-1])
    times = [rows(screen, "time")[0] for screen in swept.screens if rows(screen, "time")]
    assert times[-1].endswith("of 2 h 00 min, about 0 s left")

    last = swept.screens[-1].rstrip().splitlines()
    assert not rows(swept.screens[-1], "now")  # the dashboard is gone
    page = (folder / "plimsoll-runs" / "mine" / "report.html").absolute()
    assert (last[-4], page.is_file()) == (f"page: {page.as_uri()}", True)
    assert [line.split("plimsoll ")[1] for line in last[-3:]] == [
        f"{command} mine.yaml" for command in ("report", "explain", "export")
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_the_headline_of_its_page_cannot_be_misread(
    swept: Watched, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    state = plimsoll.open_study("mine.yaml").state
    best = state.best
    assert best is not None
    assert isinstance(best.outcome, Measured)
    speed = best.outcome.samples_per_second.value

    def near(record: Record) -> Record:
        """Returns a record as if two windows of steps could not tell it from the best."""
        slower = Estimate(value=0.98 * speed, low=0.5 * speed, high=1.5 * speed)
        assert isinstance(record.outcome, Measured)
        return replace(record, outcome=replace(record.outcome, samples_per_second=slower))

    pages = {"mine": Path("plimsoll-runs/mine/report.html").read_text("utf-8")}
    for other in state.records:
        if other.plan != best.plan:
            space = replace(state.space, baseline=other.plan)
            pages[str(other.number)] = report_page(replace(state, space=space))
            pages["near"] = report_page(replace(state, space=space, records=(best, near(other))))

    found, _ = browse(pages, (390, 1400), tmp_path)

    unclear = 0
    for name in pages:
        for width in ("390", "1400"):
            headline = found[name][width]["headline"]
            assert headline["bottom"] < 900  # seen without scrolling
            assert re.search(r"is best .*: [\d,.]+ ± .* samples/s, peak", headline["text"])
            gain = re.search(r"\d x \(([\d.]+) to ([\d.]+)\) the speed of", headline["text"])
            if gain is None:
                assert (name, "no trial beats" in headline["text"]) == ("mine", True)
                continue
            low, high = map(float, gain.groups())
            assert ("not clear of it" in headline["text"]) == (low <= 1 <= high)
            unclear += low <= 1 <= high
    assert unclear


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
def test_mlflows_pages_open_with_the_best_plan(
    swept: Watched, folder: Path, tmp_path: Path
) -> None:
    command = [PROGRAM, "ui", "mine.yaml", "--port", str(port := free_port())]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        trials, sweep = (server.stdout.readline().split(": ")[1].strip() for _ in range(2))
        end = time.monotonic() + SECONDS
        while not serves(port) and time.monotonic() < end:
            time.sleep(0.5)
        table, run = (text_of(page, tmp_path) for page in (trials, sweep))
        server.send_signal(signal.SIGINT)
        server.wait(SECONDS)

    names = re.findall("^.*micro 8 x 1 .*", table, re.MULTILINE)
    assert [name.startswith("best: ") for name in names] == [True, False]
    assert "Sort: rank" in table
    description = run.partition("Description")[2].partition("Metrics (")[0].strip()
    assert re.match(r"trial \d is best \(.* micro 8 x 1 .* samples/s, peak .* GiB", description)


def test_the_next_run_talks_before_long_imports_and_ctrl_c_leaves_a_report(
    swept: Watched,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = (sys.executable, "-X", "importtime", "-m", "plimsoll", "tune", "mine.yaml")
    stopped = watch(folder, *again, interrupt_at="[3 of 4]")

    before, _, after = stopped.written.partition("reading the model")
    assert not HEAVY & imported(before)
    assert "ray" in imported(after)
    assert "resuming after 2 earlier trials" in stopped.written
    assert stopped.code == 128 + signal.SIGINT
    assert "Stopped. To resume: " in stopped.screens[-1]

    monkeypatch.chdir(folder)
    code, said = command(capsys, "report", "mine.yaml")
    assert (code, "stopped by Ctrl-C" in said, "2 measured" in said) == (0, True, True)
