"""Start of `plimsoll tune` on the demo: seconds until its first word and first measured trial.

python -m benchmarks.start_up [--before CHECKOUT] [--out FILE]
"""

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

from benchmarks.output import command_line, write

START = [sys.executable, "-m", "plimsoll"]
DEMO = ["tune", "demo.yaml", "--events", "--trials", "1", "--no-validation"]


def watch(root: psutil.Process, spent: dict[int, tuple[float, str]]) -> None:
    """Keeps processor time and title of a process and of all that it ever started."""
    while root.is_running():
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                title = " ".join(process.cmdline()).strip()[-60:]
                spent[process.pid] = round(sum(process.cpu_times()[:2]), 1), title
        time.sleep(0.2)


def run_demo(checkout: Path) -> dict[str, Any]:
    """Runs a trial of the demo; returns seconds of clock and processors until each step."""
    spent, seconds = dict[int, tuple[float, str]](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        paths = {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": f"{folder}/cache"}
        place: dict[str, Any] = {"cwd": folder, "env": {**os.environ, **paths}}
        subprocess.run([*START, "init", "--example", "demo", "."], check=True, **place)
        began, steps = time.perf_counter(), ["", "sweep_started", "trial_started", "trial_ended"]
        with subprocess.Popen([*START, *DEMO], stdout=subprocess.PIPE, **place) as run:
            threading.Thread(target=watch, args=(psutil.Process(run.pid), spent)).start()
            for line in run.stdout or ():
                while steps and steps[0] in line.decode():
                    total = round(sum(used for used, _ in spent.values()), 1)
                    passed = round(time.perf_counter() - began, 1), total
                    seconds[steps.pop(0) or "first_word"] = passed
                    profile = sorted(spent.values(), reverse=True)[:8]
    return seconds | {"profile": profile}


def main() -> None:
    """Measures this checkout, after another one if there is one."""
    parser = command_line(__doc__)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    both = ("before", options.before), ("now", Path(__file__).parents[1])
    print(figures := {name: run_demo(checkout) for name, checkout in both if checkout})
    write({"wall_and_processor_seconds": figures, "load": os.getloadavg()}, options.out)


if __name__ == "__main__":
    main()
