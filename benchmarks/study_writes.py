"""Cost of a trial in the study's storage: time, statements and commits.

    python -m benchmarks.study_writes [--storage URL] [--trials N] [--out FILE]

Everything is real: trials are opened and closed as a sweep does, in SQLite or in the database that
is named. Each statement is a round trip where the database is on another host.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import event
from sqlalchemy.engine import Engine

from benchmarks.naps import nap_of
from benchmarks.output import write
from benchmarks.scale_fronts import cluster_of, space_of, spec_for
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.records import Record
from orchestrator.study.study import Study


def measure(storage: str | None, trials: int) -> dict[str, Any]:
    """The figures of a number of trials, run one after the other."""
    counted = Counter[str]()
    event.listen(Engine, "before_cursor_execute", lambda *_: counted.update(statements=1))
    event.listen(Engine, "commit", lambda *_: counted.update(commits=1))
    taken: dict[str, list[tuple[float, float]]] = {"ask": [], "tell": []}
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_for(folder, 1, trials)
        space, name = space_of(spec, cluster_of(1)), f"writes-{uuid.uuid4().hex[:8]}"
        if storage is not None:
            kept = spec.study.model_copy(update={"storage": storage})
            spec = spec.model_copy(update={"study": kept})
        study = Study(spec, name, space)
        counted.clear()
        for plan in list(space.candidates)[: 97 * trials : 97]:
            number = _timed(taken["ask"], partial(study.ask, plan, IsBaseline()))
            record = Record(
                number=number,
                plan=plan,
                outcome=nap_of(plan).outcome,
                reason=IsBaseline(),
                started_at=time.time(),
                ended_at=time.time(),
                fingerprint=None,
            )
            _timed(taken["tell"], partial(study.tell, record))
    return {
        "storage": "sqlite" if storage is None else storage.partition(":")[0],
        "trials": trials,
        **{
            f"{what}_{clock}_ms_median": round(1000 * float(np.median([t[at] for t in times])), 1)
            for what, times in taken.items()
            for at, clock in enumerate(("wall", "cpu"))
        },
        "statements_each_trial": round(counted["statements"] / trials, 1),
        "commits_each_trial": round(counted["commits"] / trials, 1),
    }


def _timed(taken: list[tuple[float, float]], call: Callable[[], Any]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    return found


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--storage", default=None, help="an Optuna storage URL; nothing: SQLite")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    found = measure(given.storage, given.trials)
    for name, value in found.items():
        print(name, value)
    write(found, given.out)


if __name__ == "__main__":
    main()
