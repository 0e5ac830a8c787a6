"""Records a space for a fair test of answers: its fastest plans many times, in interleaved rounds.

    python -m benchmarks.record SPEC --out FILE.csv [--minutes 60] [--top 20] [--rounds 16]

First each legal plan of the specification is measured once, in random order. Then come rounds over
the fastest, each in a random order of its own, so that a machine that drifts favours none. Rows
keep the time at which a trial began. A recording that was stopped, or whose minutes are over, goes
on from its file.
"""

import argparse
import csv
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.space import space_of, varying
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.specification.load import load_spec
from search_spaces.specification.schema import GIB, SweepSpec
from search_spaces.trial import Crashed, Measured, Outcome, OutOfMemory, TrialRequest
from tests.workers.launch import Groups

Cells = dict[str, Any]
_COLUMNS = (
    *("model", "gpu", "gpu_mem_gib", "n_gpus", "seq_len", "global_batch", "samples_per_s"),
    *("peak_mem_gib", "oom", "notes", "ranking_sets", "repeat", "began", "trial_seconds"),
    *("samples_per_s_low", "samples_per_s_high", "wanted_gib", "outcome"),
)


def turns(
    plans: Sequence[Plan], rows: Sequence[Cells], knobs: Sequence[str], top: int, rounds: int
) -> Iterator[tuple[int, Plan]]:
    """Yields what is left to measure: a round, and a plan; `rows` grow while they are measured."""

    def left(repeat: int, among: Sequence[Plan]) -> Iterator[tuple[int, Plan]]:
        done = {_key(row, knobs) for row in rows if int(row["repeat"]) == repeat}
        for plan in random.Random(f"round {repeat}").sample(among, len(among)):
            if _key(plan.as_dict(), knobs) not in done:
                yield repeat, plan

    yield from left(0, plans)
    rates = {
        _key(row, knobs): float(row.get("samples_per_s") or 0)
        for row in rows
        if int(row["repeat"]) == 0
    }
    fastest = sorted(plans, key=lambda plan: -rates.get(_key(plan.as_dict(), knobs), 0.0))[:top]
    for repeat in range(1, rounds + 1):
        yield from left(repeat, fastest)


def _key(cells: Mapping[str, Any], knobs: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(cells[name]) for name in knobs)


def cells_of(outcome: Outcome) -> Cells:
    """Returns the columns that say how a trial ended."""
    told: Cells = {"outcome": outcome.kind, "oom": isinstance(outcome, OutOfMemory)}
    if isinstance(outcome, Measured):
        rate = outcome.samples_per_second
        return told | {
            "samples_per_s": f"{rate.value:.6g}",
            "samples_per_s_low": f"{rate.low:.6g}",
            "samples_per_s_high": f"{rate.high:.6g}",
            "peak_mem_gib": f"{outcome.memory.peak_bytes / GIB:.6g}",
        }
    if isinstance(outcome, OutOfMemory):
        return told | {"wanted_gib": outcome.wanted_bytes and f"{outcome.wanted_bytes / GIB:.6g}"}
    return told | {"notes": "RUN FAILED"}


def record(spec: SweepSpec, file: Path, minutes: float, top: int, rounds: int) -> int:
    """Measures until the time is over; returns the number of turns that are left."""
    plans = space_of(spec).table
    knobs, until = varying(plans), time.monotonic() + 60 * minutes
    rows: list[Cells] = []
    if file.exists():
        with file.open(encoding="utf-8", newline="") as kept:
            rows = [*csv.DictReader(kept)]
    groups = Groups(spec)
    fixed = {"model": spec.model.name, "gpu": "cpu", "gpu_mem_gib": spec.cluster.memory_gib}
    fixed |= {"n_gpus": spec.cluster.workers, "seq_len": spec.train.sequence_length}
    fixed |= {"global_batch": spec.train.global_batch, "ranking_sets": file.stem}
    with file.open("a", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, [*dict.fromkeys((*_COLUMNS, *knobs))], restval="")
        if not opened.tell():
            writer.writeheader()
        for repeat, plan in turns(plans, rows, knobs, top, rounds):
            if time.monotonic() > until:
                break
            began = time.time()
            outcome = measure(groups, TrialRequest(number=0, plan=plan, spec=spec))
            row = fixed | {name: getattr(plan, name) for name in knobs} | cells_of(outcome)
            row |= {"repeat": repeat, "began": f"{began:.3f}"}
            rows.append(row | {"trial_seconds": f"{time.time() - began:.4g}"})
            writer.writerow(rows[-1])
            opened.flush()
    groups.stop()
    return sum(1 for _ in turns(plans, rows, knobs, top, rounds))


def measure(groups: Groups, request: TrialRequest) -> Outcome:
    """Runs a trial; ranks that die or hang are replaced for the next one."""
    try:
        return groups.of(request.plan.world_size).run(request)
    except AssertionError as lost:
        return Crashed(cause="worker_died", rank=None, phase="trial", detail=str(lost))


def main() -> int:
    """Records for some minutes; the exit status, 2 for what a user caused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--top", type=int, default=20, help="fastest plans to repeat (20)")
    parser.add_argument("--rounds", type=int, default=16, help="measurements of each (16)")
    given = parser.parse_args()
    try:
        left = record(load_spec(given.spec), given.out, given.minutes, given.top, given.rounds)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{given.out}: {left} trials are left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
