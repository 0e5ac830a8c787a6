"""Start-up: processor time of quick commands; first word and first measured trial of the demo.

    python -m benchmarks.start_up [--repeats 3] [--before FOLDER] [--out FILE]

A quick command's least user and system time counts: what else runs on the machine only adds to it.
The demo runs with empty caches of its own, as on a user's first day. Each of its steps is told by
the wall clock and by the processor time of all processes until then. `--before` measures another
checkout in turn with this one: on a machine that others use, the two mean something together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep

import psutil

from benchmarks.output import write

ROOT = Path(__file__).parents[1]
QUICK = {"--help": [], "models": [], "schema": [], "init": ["--force"]}
DEMO = ["tune", "demo.yaml", "--events", "--trials", "1", "--no-validation"]
STEPS = {
    "first word": "",
    "starting Ray": '"starting_ray"',
    "study open": '"sweep_started"',
    "first trial begins": '"trial_started"',
    "workers start": '"starting_workers"',
    "workers ready": '"building"',
    "first measured trial": '"trial_ended"',
}
_POLL_SECONDS = 0.2
Seconds = dict[str, dict[str, float]]


def environment(checkout: Path, cache: Path) -> dict[str, str]:
    """Returns the environment of a command of a checkout, with caches of its own."""
    names = {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    # without this variable compiled modules are kept, as an installation has them
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | names


def plimsoll(arguments: Sequence[str]) -> list[str]:
    """Returns the command line of a command."""
    return [sys.executable, "-m", "plimsoll", *arguments]


def processor_seconds(arguments: Sequence[str], folder: Path, checkout: Path) -> float:
    """Returns the user and system time of a command that ends by itself."""
    before = os.times()
    variables = environment(checkout, folder)
    command = plimsoll(arguments)
    subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


class TreeTime:
    """Processor time of a process and all that it ever started, as last seen of each."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._seconds: dict[psutil.Process, float] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._root.is_running():
            self.read()
            sleep(_POLL_SECONDS)

    def read(self) -> float:
        """Returns the sum in seconds."""
        with suppress(psutil.Error):
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.Error):
                    self._seconds[process] = sum(process.cpu_times()[:2])
        return sum(tuple(self._seconds.values()))


def demo_steps(folder: Path, checkout: Path) -> Seconds:
    """Runs the demo's first trial; returns wall-clock and processor seconds until each step."""
    variables = environment(checkout, folder / "cache")
    subprocess.run(
        plimsoll(["init", "--example", "demo", "."]), cwd=folder, env=variables, check=True
    )
    steps: Seconds = {}
    started = perf_counter()
    with subprocess.Popen(
        plimsoll(DEMO), cwd=folder, env=variables, stdout=subprocess.PIPE, text=True
    ) as running:
        spent = TreeTime(psutil.Process(running.pid))
        assert running.stdout is not None
        for line in running.stdout:
            for step, mark in STEPS.items():
                if step not in steps and mark in line:
                    seconds = perf_counter() - started
                    steps[step] = {"wall": round(seconds, 2), "processor": round(spent.read(), 2)}
    return steps


def median_steps(runs: Sequence[Seconds]) -> Seconds:
    """Returns the medians of steps that all runs have."""
    return {
        step: {
            clock: round(statistics.median(run[step][clock] for run in runs), 2)
            for clock in ("wall", "processor")
        }
        for step in STEPS
        if all(step in run for run in runs)
    }


def measure(checkouts: Mapping[str, Path], repeats: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields, by checkout, the figures of quick commands and of the demo, measured in turn."""
    quick: dict[str, dict[str, float]] = {name: {} for name in checkouts}
    demo: dict[str, list[Seconds]] = {name: [] for name in checkouts}
    for _ in range(repeats):
        for name, checkout in checkouts.items():
            with tempfile.TemporaryDirectory() as folder:
                for word, more in QUICK.items():
                    spent = processor_seconds([word, *more], Path(folder), checkout)
                    quick[name][word] = round(min(spent, quick[name].get(word, spent)), 2)
            with tempfile.TemporaryDirectory() as folder:
                demo[name].append(demo_steps(Path(folder), checkout))
    for name in checkouts:
        yield name, {"processor_seconds": quick[name], "demo_seconds": median_steps(demo[name])}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkouts = {"before": options.before.absolute()} if options.before else {}
    figures = dict(measure({**checkouts, "now": ROOT}, options.repeats))
    print(json.dumps(figures, indent=2))
    load = round(os.getloadavg()[1], 1)
    write({**figures, "repeats": options.repeats, "load_of_machine": load}, options.out)


if __name__ == "__main__":
    main()
