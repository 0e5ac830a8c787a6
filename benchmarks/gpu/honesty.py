"""The tool's samples per second against a plain loop's: measured, run plainly, measured again.

Micro-batch 1 without compilation is limited by the host, where a tool can be wrong; the fastest
plan by the device.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.cases import BASELINE, LLAMA_1B, winner
from benchmarks.gpu.plain import plain_rate, write_plain
from benchmarks.gpu.run import Run
from search_spaces.errors import UserError
from search_spaces.trial import Measured

WITHIN = 0.02
_OBJECTIVE = {"min_steps": 6, "max_steps": 24, "max_seconds": 8.0, "interval": 0.005}


def measure(run: Run) -> None:
    """Compares both plans."""
    for name, knobs in (("micro-batch 1", BASELINE), ("winner", winner(tiny=run.tiny))):
        if not run.has(name):
            run.write(name, _compared(run, name, knobs))


def _compared(run: Run, name: str, knobs: dict[str, Any]) -> dict[str, Any]:
    sections = {} if run.tiny else {"objective": _OBJECTIVE}
    spec, plan = LLAMA_1B.one_plan(knobs, tiny=run.tiny, **sections)
    outcomes = [run.trial(f"{name}, tool", spec, plan, way=f"{name}, tool")]
    run.worker.stop()  # so that the script has the device
    way = f"{name}, plain loop"
    with TemporaryDirectory(prefix="plimsoll-gpu-") as kept:
        folder = Path(kept, "script")
        exported = write_plain(folder, spec, plan)
        try:
            plain = plain_rate(folder, exported, tiny=run.tiny)
        except UserError as error:
            return {"way": way, "rate": None, "failed": str(error)}
    outcomes.append(run.trial(f"{name}, tool again", spec, plan, way=f"{name}, tool"))
    rates = [one.samples_per_second.value for one in outcomes if isinstance(one, Measured)]
    ratio = plain * len(rates) / sum(rates) if rates else None
    return {"way": way, "rate": plain, "plain_ratio": ratio, "within": WITHIN}
