"""Start of `plimsoll tune` on the demo: seconds until its first word and first measured trial.

    python -m benchmarks.start_up [--before CHECKOUT] [--repeats 3] [--out FILE]

Caches are empty. Each step has the least wall-clock and processor seconds of all processes, to
which others on the machine only add. `--before` is run in turn with this checkout.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.output import write

START = [sys.executable, "-m", "plimsoll"]
DEMO = ["tune", "demo.yaml", "--events", "--trials", "1", "--no-validation"]
STEPS = ("", "sweep_started", "trial_started", "trial_ended")


def watch(root: psutil.Process, seconds: dict[psutil.Process, float]) -> None:
    """Keeps the processor time of a process and of all that it ever started."""
    while root.is_running():
        with suppress(psutil.Error):
            for process in (root, *root.children(recursive=True)):
                seconds[process] = sum(process.cpu_times()[:2])
        time.sleep(0.2)


def run_demo(checkout: Path, least: dict[str, list[float]]) -> None:
    """Runs a trial of the demo; lowers the seconds until each step to those of this run."""
    spent: dict[psutil.Process, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": f"{folder}/cache"}
        place: dict[str, Any] = {"cwd": folder, "env": {**os.environ, **paths}}
        subprocess.run([*START, "init", "--example", "demo", "."], check=True, **place)
        began, steps = time.perf_counter(), list(STEPS)
        with subprocess.Popen([*START, *DEMO], stdout=subprocess.PIPE, **place) as run:
            threading.Thread(target=watch, args=(psutil.Process(run.pid), spent)).start()
            for line in run.stdout or ():
                while steps and steps[0] in line.decode():
                    name = steps.pop(0) or "first_word"
                    now = [round(time.perf_counter() - began, 1), round(sum(spent.values()), 1)]
                    least[name] = list(map(min, now, least.get(name, now)))


def main() -> None:
    """Measures this checkout, in turn with another one if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: dict[str, dict[str, list[float]]] = {"before": {}, "now": {}}
    for _ in range(options.repeats):
        for name, checkout in (("before", options.before), ("now", Path(__file__).parents[1])):
            if checkout:
                run_demo(checkout, figures[name])
    print(figures)
    write({"wall_and_processor_seconds": figures, "load": os.getloadavg()}, options.out)


if __name__ == "__main__":
    main()
