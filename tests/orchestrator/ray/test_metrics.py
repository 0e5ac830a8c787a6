"""A real sweep under a Ray head, scraped as Prometheus would, beside the study that it left."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.rigs.ray_head import free_port, ray_head
from orchestrator.core.metrics import METRICS
from orchestrator.event_log import from_json, read_events
from orchestrator.event_log.lines import SweepEndedLine, TrialEndedLine, TrialStartedLine
from orchestrator.study import load_proofs, load_records
from search_spaces.outcome import Measured
from search_spaces.record import Record
from search_spaces.spec.load import load_spec
from tests.dashboard import expressions, names_and_labels
from tests.orchestrator.ray import awkward_model
from tests.orchestrator.ray.cli import PLIMSOLL

ROOT = Path(__file__).parents[3]
SPEC = f"""
model: awkward_model:make
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 32, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0],
         micro_batch: [1, {awkward_model.RAISES}, {awkward_model.TOO_LARGE}]}}
objective: {{max_seconds: 0.5, interval: 0.2}}
proof: {{enabled: true, longer: 1, slower: 0.9}}
tracking: {{enabled: false, experiment: team}}
"""
# An agent forgets a gauge after two of these, which is less than workers take to start
REPORT_MS = 1500
OURS = "ray_plimsoll_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a sweep left: its scrapes, what it wrote to stdout, its folder."""

    scrapes: tuple[tuple[Metric, ...], ...]
    stdout: str
    folder: Path

    @property
    def records(self) -> tuple[Record, ...]:
        """The study's."""
        return load_records(load_spec(self.folder / "sweep.yaml"), "sweep")

    def value(self, name: str, **labels: str) -> float:
        """The last value that was scraped of the only series with these labels."""
        wanted = {"study": "sweep", "experiment": "team", **labels}
        for scrape in reversed(self.scrapes):
            found = [
                sample.value
                for family in scrape
                for sample in family.samples
                if sample.name == OURS + name and wanted.items() <= sample.labels.items()
            ]
            if found:
                assert len(found) == 1
                return found[0]
        raise AssertionError(f"{name} {labels} was never there")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    home, port = tmp_path_factory.mktemp("metrics"), free_port()
    work = home / "work"
    work.mkdir()
    shutil.copy(awkward_model.__file__, work / "awkward_model.py")
    (work / "sweep.yaml").write_text(SPEC)
    often = {
        "RAY_metrics_report_interval_ms": str(REPORT_MS),
        "PYTHONPATH": str(ROOT),  # this checkout, wherever the command is installed from
    }
    with ray_head(home, token=False, metrics_port=port, **often) as environ:
        done, stop = list[tuple[Metric, ...]](), threading.Event()
        scraper = threading.Thread(target=_scrape, args=(port, done, stop))
        scraper.start()
        try:
            sweep = subprocess.run(
                [PLIMSOLL, "tune", "sweep.yaml", "--events"],
                cwd=work,
                env=environ,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        finally:
            stop.set()
            scraper.join()
    assert sweep.returncode == 0, sweep.stderr[-4000:]
    return Seen(scrapes=tuple(done), stdout=sweep.stdout, folder=work)


def _scrape(port: int, done: list[tuple[Metric, ...]], stop: threading.Event) -> None:
    """Once a second, and once when told to stop, keeps what there is of ours."""
    last = False
    while not last:
        last = stop.wait(1)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                text = page.read().decode()
        except (urllib.error.URLError, TimeoutError):
            continue
        ours = [f for f in text_string_to_metric_families(text) if f.name.startswith(OURS)]
        done.append(tuple(ours))


def measured(records: Sequence[Record]) -> list[float]:
    return [
        record.outcome.samples_per_second.value
        for record in records
        if isinstance(record.outcome, Measured)
    ]


def test_values_are_those_of_the_study(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(seen.folder)
    records = seen.records
    kinds = Counter(record.outcome.kind for record in records)
    assert kinds == {"measured": 1, "crashed": 1, "out_of_memory": 1}

    assert {kind: seen.value("trials_total", outcome=kind) for kind in kinds} == kinds
    assert seen.value("best_samples_per_second") == pytest.approx(measured(records)[0])
    assert seen.value("baseline_samples_per_second") == pytest.approx(measured(records)[0])
    assert seen.value("best_objective", metric="samples_per_second") == pytest.approx(
        measured(records)[0]
    )
    assert seen.value("out_of_memory_share") == pytest.approx(1 / 3)
    assert seen.value("trials_running") == 0
    assert seen.value("groups") == 1
    assert seen.value("proof_state", state="proven") == 1
    assert seen.value("proof_state", state="open") == 0


def test_latencies_are_those_of_the_events(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(seen.folder)
    lines = list(read_events(seen.folder / "plimsoll-runs" / "sweep" / "events.jsonl"))
    starts = [line for line in lines if isinstance(line, TrialStartedLine)]
    ends = [line for line in lines if isinstance(line, TrialEndedLine)]
    asks = [line.ask_seconds for line in starts if line.ask_seconds is not None]
    waits = [line.waited_seconds for line in ends if line.waited_seconds is not None]
    assert len(asks) == 2  # of three trials; the first plan is nobody's choice
    assert len(waits) == len(ends) == 4  # the proof's too

    for name, values in (("ask_seconds", asks), ("wait_seconds", waits)):
        assert seen.value(f"{name}_count") == len(values)
        bounds = next(metric.buckets for metric in METRICS if metric.name == f"plimsoll_{name}")
        for bound in bounds:
            below = sum(value <= bound for value in values)
            assert seen.value(f"{name}_bucket", le=str(bound)) == below
    # workers are started for the first trial and for the proof, and are there for the second
    assert waits[0] > 10 * waits[1]
    assert ends[3].proof
    assert waits[3] > 10 * waits[1]

    proofs = load_proofs(load_spec(seen.folder / "sweep.yaml"), "sweep")
    # when the workers had ended, which the driver hears of later
    ended = [record.ended_at for record in (*seen.records, *proofs)]
    ran = sum(end - start.time.timestamp() for start, end in zip(starts, ended, strict=True))
    over = lines[-1].time.timestamp() - starts[0].time.timestamp()  # until the sweep ended
    busy = (ran - sum(waits)) / over
    assert seen.value("busy_share") == pytest.approx(busy, rel=0.1)


def test_gauges_stay_while_nothing_happens(seen: Seen) -> None:
    """Ray's agent forgets what is not set again; workers that start take longer than that."""
    there = [any(f.name == f"{OURS}groups" for f in scrape) for scrape in seen.scrapes]
    first = there.index(True)
    last = len(there) - there[::-1].index(True)

    assert last - first > 8
    assert sum(there[first:last]) / (last - first) > 0.9


def test_what_the_dashboard_asks_for_is_there(seen: Seen) -> None:
    exported = {
        sample.name: set(sample.labels)
        for scrape in seen.scrapes
        for family in scrape
        for sample in family.samples
    }

    for expression in expressions():
        for name, labels in names_and_labels(expression):
            assert labels <= exported.get(name, set()), f"{name} in {expression}"


def test_what_is_exported_is_described(seen: Seen) -> None:
    families = {family.name: family for scrape in seen.scrapes for family in scrape}

    assert {f"{OURS.removesuffix('plimsoll_')}{metric.name}" for metric in METRICS} == set(families)
    for metric in METRICS:
        family = families[f"ray_{metric.name}"]
        assert (family.documentation, family.type) == (metric.help, metric.kind)


def test_stdout_is_the_events_and_nothing_else(seen: Seen) -> None:
    lines = [from_json(text) for text in seen.stdout.splitlines()]

    assert lines == list(read_events(seen.folder / "plimsoll-runs" / "sweep" / "events.jsonl"))
    assert isinstance(lines[-1], SweepEndedLine)
    assert (lines[-1].trials, lines[-1].proof) == (3, "proven")
    assert json.loads(seen.stdout.splitlines()[0])["event"] == "sweep_started"
