"""All that half an hour on a GPU can show: steps by their worth, each with a time limit.

    python -m benchmarks.gpu.half_hour [--tiny] [--out DIR] [--minutes 30]

Each result is a line of `results.jsonl` as soon as it is there, and all files lie in
`half_hour.tgz` at the end, however it ends. The same command goes on with what has no result yet.
"""

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from benchmarks.gpu.results import DONE, Results, troubles
from benchmarks.gpu.run import Run
from orchestrator.host import kill_all, system_facts
from search_spaces.errors import UserError

FOLDER, TINY = Path("plimsoll-runs/gpu"), Path("plimsoll-runs/gpu-tiny")
PACK = "half_hour.tgz"
_PACK_SECONDS, _END_SECONDS = 10.0, 20.0
_SLOW = 10  # times the limits of a tiny run, on a busy CPU
_LARGEST_BYTES = 16 << 20  # of a packed file


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of the half hour.

    Attributes:
        name: Name in the results.
        call: Module of this package and function, which gets a `Run`.
        seconds: Time limit.
        whole: It has no result before its end, and does not begin without all its time.
    """

    name: str
    call: str
    seconds: float
    whole: bool = False


STEPS = (
    Step(name="tests", call="machine.measure", seconds=60),
    Step(name="probe", call="ceilings.measure", seconds=130),
    Step(name="forecasts", call="plans.forecasts", seconds=40),
    Step(name="profile", call="profile.measure", seconds=80),
    Step(name="tune", call="sweeps.tune", seconds=260, whole=True),
    Step(name="trainer", call="trainer_defaults.measure", seconds=60, whole=True),
    Step(name="plain_ray_tune", call="sweeps.plain", seconds=260, whole=True),
    Step(name="overhead", call="sweeps.overhead", seconds=130, whole=True),
    Step(name="plans", call="plans.measure", seconds=190),
    Step(name="honesty", call="honesty.measure", seconds=140),
    Step(name="out_of_memory", call="out_of_memory.measure", seconds=100, whole=True),
)
Start = Callable[[Step, float], str]  # takes a limit in seconds, and returns how the step ended


def conduct(
    steps: Sequence[Step], results: Results, start: Start, seconds_left: Callable[[], float]
) -> None:
    """Runs all steps that have not ended yet, in order, while their time is left."""
    for step in steps:
        if results.has_ended(step.name):
            continue
        left = seconds_left()
        if left < (step.seconds if step.whole else step.seconds / 3):
            print(f"{step.name}: not begun, {max(left, 0):.0f} s are left", flush=True)
            continue
        print(f"{step.name}: {min(step.seconds, left):.0f} s at most", flush=True)
        ending = start(step, min(step.seconds, left))
        results.add(step.name, "end", {"ended": ending, "seconds": left - seconds_left()})
        print(f"{step.name}: {ending}", flush=True)


def pack(folder: Path) -> Path:
    """Packs all files of a folder but huge ones, and returns the archive."""
    unfinished = folder / f"{PACK}.part"
    with tarfile.open(unfinished, "w:gz") as archive:
        for file in sorted(folder.rglob("*")):
            is_ours = file.is_file() and not file.is_symlink() and not file.name.startswith(PACK)
            if is_ours and file.stat().st_size <= _LARGEST_BYTES:
                archive.add(file, file.relative_to(folder))
    return unfinished.rename(folder / PACK)


def run_apart(step: Step, seconds: float, out: Path, *, tiny: bool) -> str:
    """Runs a step in a process of its own, and ends all that it started."""
    command = [sys.executable, "-m", "benchmarks.gpu.half_hour", "--step", step.name]
    command += ["--out", str(out), *(["--tiny"] if tiny else [])]
    with (out / f"{step.name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return "out of time"
    finally:
        _end(process)
    return DONE if code == 0 else f"ended with {code}, see {step.name}.log"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks a process and its children to end, and kills those that are left."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    kill_all(children)
    process.wait()


def run_step(step: Step, out: Path, *, tiny: bool) -> int:
    """Runs a step in this process; 2 if it cannot run here."""
    run = Run(step=step.name, out=out, tiny=tiny)
    module, _, name = step.call.partition(".")
    try:
        getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)(run)
    except UserError as error:
        print(f"{step.name}: {error}", file=sys.stderr)
        return 2
    finally:
        run.worker.stop()
    return 0


def half_hour(out: Path, seconds: float, *, tiny: bool) -> int:
    """Runs all steps, and packs their results; 1 if a way of training reached no rate."""
    until = time.monotonic() + seconds - _PACK_SECONDS
    results = Results(folder=out)

    def start(step: Step, limit: float) -> str:
        return run_apart(step, limit * (_SLOW if tiny else 1), out, tiny=tiny)

    try:
        conduct(STEPS, results, start, lambda: until - time.monotonic())
    finally:
        print(pack(out), flush=True)
    found = list(troubles(results.rows, [step.name for step in STEPS]))
    print("\n".join(found) or "every way reached a rate", flush=True)
    return 1 if found else 0


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    """Runs all steps, or one; 2 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU, as a test")
    parser.add_argument("--out", type=Path, help=f"folder of results; {FOLDER}, or {TINY} if tiny")
    parser.add_argument("--minutes", type=float, help="time for all steps; 30, or 240 if tiny")
    parser.add_argument("--step", choices=[step.name for step in STEPS], help="run it alone")
    given = parser.parse_args()
    if not given.tiny and not system_facts()["gpus"]:
        print(
            "no CUDA GPU can be reached here (NVML tells of none);"
            " --tiny runs the program on a CPU, with sizes that say nothing of speed",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    out: Path = given.out or (TINY if given.tiny else FOLDER)
    out.mkdir(parents=True, exist_ok=True)
    seconds = 60 * (given.minutes or (240 if given.tiny else 30))
    if given.step:
        step = next(step for step in STEPS if step.name == given.step)
        return run_step(step, out, tiny=given.tiny)
    return half_hour(out, seconds, tiny=given.tiny)


if __name__ == "__main__":
    sys.exit(main())
