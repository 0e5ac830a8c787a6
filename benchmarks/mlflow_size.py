"""Size of a long sweep in MLflow, the time to write it and the time to look at it.

    python -m benchmarks.mlflow_size [--trials N] [--folder DIR] [--out FILE]

The store is MLflow's own on SQLite, written as a sweep writes it and asked as its page asks: the
table of the runs, a filter, the history of a metric. Trials are invented: their steps are of the
virtual machine of `benchmarks.scale`, with the losses and the step times of 30 steps each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from benchmarks.naps import nap_of
from benchmarks.output import write
from benchmarks.scale_fronts import cluster_of, space_of, spec_for
from orchestrator.core.events import SweepEnded, SweepStarted, TrialEnded
from orchestrator.core.reasons import BudgetSpent, Promising
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, advance, begin
from orchestrator.tracking.mlflow_reachability import configure_mlflow
from orchestrator.tracking.mlflow_store import store_uri
from orchestrator.tracking.mlflow_writer import StudyWriter
from search_spaces.facts import CodeVersion, DataProfile, LengthBin, Provenance
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured

_STEPS = 30
_SHOWN = 100  # runs that a page of MLflow's table asks for


def measure(trials: int, folder: Path) -> dict[str, Any]:
    """The figures of a sweep of that many trials, kept in the folder."""
    configure_mlflow()
    spec = spec_for(str(folder), 1, trials)
    states = list(_states(spec, trials))
    writer, each = StudyWriter(states[0], None, (_provenance(),)), []
    for state in states[1:]:
        began = time.perf_counter()
        writer.add_missing(state)
        each.append(time.perf_counter() - began)
    ending = _seconds(lambda: writer.finish(states[-1]))
    client = MlflowClient(tracking_uri=store_uri(spec))
    experiment = client.get_experiment_by_name(states[0].study)
    assert experiment is not None
    fastest = "metrics.`samples_per_second` DESC"

    def table(filter_string: str = "") -> list[Any]:
        found: list[Any] = client.search_runs(
            [experiment.experiment_id], filter_string, max_results=_SHOWN, order_by=[fastest]
        )
        return found

    one = table("tags.outcome = 'measured'")[0]
    run_id = one.info.run_id
    return {
        "trials": trials,
        "write_ms_median": round(1000 * statistics.median(each), 1),
        "write_ms_last_tenth": round(1000 * statistics.median(each[-max(trials // 10, 1) :]), 1),
        "finish_seconds": round(ending, 2),
        "database_mb": round((folder / "mlflow.db").stat().st_size / 1e6, 1),
        "values_of_a_trial": {
            "params": len(one.data.params),
            "metrics": len(one.data.metrics),
            "tags": len(one.data.tags),
        },
        "table_seconds": round(_seconds(table), 2),
        "filter_seconds": round(_seconds(lambda: table("tags.outcome = 'out_of_memory'")), 2),
        "history_ms": round(1000 * _seconds(lambda: client.get_metric_history(run_id, "loss")), 1),
    }


def _provenance() -> Provenance:
    """A commit, and data of as many different lengths as are kept."""
    lengths = tuple(
        LengthBin(shortest=at, longest=at + 63, samples=99) for at in range(1, 2049, 64)
    )
    return Provenance(
        at=0.0,
        user="ann",
        is_job=True,
        code=CodeVersion(
            commit="c" * 40, branch="faster", remote="https://example.com/model.git", modified=True
        ),
        data=DataProfile(
            name="text.jsonl",
            digest="0123456789abcdef",
            files=("/data/text.jsonl",),
            tokenizer="",
            samples=99 * len(lengths),
            tokens=99 * 1024 * len(lengths),
            histogram=lengths,
        ),
    )


def _states(spec: SweepSpec, trials: int) -> Iterator[SweepState]:
    """The sweep before its first trial, after each, and when it has ended."""
    space, began = space_of(spec, cluster_of(1)), time.time()
    state = begin(
        SweepStarted(
            study="mlflow-size",
            spec=spec,
            space=space,
            records=(),
            memory_limit_bytes=None,
            at=began,
        )
    )
    yield state
    apart = len(space.candidates) // trials
    for number, plan in enumerate(islice(space.candidates, 0, apart * trials, apart)):
        outcome = nap_of(plan).outcome
        if isinstance(outcome, Measured):
            step = outcome.step_seconds.value
            outcome = replace(
                outcome,
                losses=tuple(7 - 0.01 * at for at in range(_STEPS)),
                seconds_by_step=(3 * step, *[step] * (_STEPS - 1)),
            )
        record = Record(
            number=number,
            plan=plan,
            outcome=outcome,
            reason=Promising(fits=0.9, gain=0.1, changes=(("micro_batch", 8),)),
            started_at=began + 60 * number,
            ended_at=began + 60 * number + 50,
            fingerprint=None,
        )
        state = advance(state, TrialEnded(record=record, at=record.ended_at))
        yield state
    spent = BudgetSpent(limit="trials", amount=trials)
    yield advance(state, SweepEnded(reason=spent, at=began + 60 * trials))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    """Writes a sweep, and the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, default=None, help="kept, to look at; else temporary"
    )
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        found = measure(given.trials, given.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(given.trials, Path(folder))
    for name, value in found.items():
        print(name, value)
    write(found, given.out)


if __name__ == "__main__":
    main()
