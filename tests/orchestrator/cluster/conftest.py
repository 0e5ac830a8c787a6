"""One Ray head for all sweeps that do not test the head, and one sweep that meets everything.

A head and a driver take ten seconds of processor time to start, a group of workers fifteen: so the
sweep that several files look at runs once, on the head, and is left as it ended.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.core.records import Record
from orchestrator.core.repeats import is_repeat
from orchestrator.study.reader import load_records, load_state
from orchestrator.tracking.events import Line, read_events
from orchestrator.workspace import TRACKING_VARIABLE
from search_spaces.spec.load import load_spec
from search_spaces.spec.schema import SweepSpec
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import PLIMSOLL
from tests.rigs.ports import free_port
from tests.rigs.postgres import Server
from tests.rigs.ray_head import SESSION, ray_head

ROOT = Path(__file__).parents[3]
# An agent forgets a gauge after two of these, which is less than workers take to start
REPORT_MS = 1500
OURS = "ray_plimsoll_"
AWAY = "the study's storage is unavailable ("
# In the order in which the sampler comes to them, those whose group is replaced come last
TOO_LARGE, SOUND, FORGETS, RAISES, DIVERGES, HANGS, DIES = 128, 16, 32, 2, 8, 64, 4
MICRO_BATCHES = (1, RAISES, DIES, DIVERGES, SOUND, FORGETS, HANGS, TOO_LARGE)
DEADLINE_SECONDS = 12
# The largest runs out of memory: were it a smaller one, larger ones would not be tried
SPEC = f"""
model:
  name: awkward_model:make
  config:
    pass_seconds: 0.01
    raises: {RAISES}
    diverges: {DIVERGES}
    dies: {DIES}
    hangs: {HANGS}
    forgets: {FORGETS}
    too_large: {TOO_LARGE}
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 256, sequence_length: 8, precision: fp32, learning_rate: 0.01}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: {list(MICRO_BATCHES)}}}
objective: {{max_seconds: 2, interval: 0.2, max_steps: 12}}
budget: {{trials: 20, trial_seconds: {DEADLINE_SECONDS}}}
validation: {{repeats: 0}}
study: {{sampler: random, storage: "STORAGE"}}
tracking: {{experiment: team}}
"""
TOKENS = {  # of what a driver's environment holds beside the addresses, each to be found nowhere
    "HF_TOKEN": "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",
    "MLFLOW_TRACKING_TOKEN": "mlf-7f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzPlimsoll",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Eventful:
    """A finished sweep, for tests to inspect.

    Trials raise, diverge, die, hang and run out of memory; one validation fails and the next holds;
    the databases of study and MLflow are stopped during the second trial.

    Attributes:
        folder: Where it was started; `sweep.yaml` and `plimsoll-runs` are in there.
        spec: What was asked for.
        trials: The study's trials, each of another plan.
        checks: Trials of measured plans, to tell whether the machine works.
        validations: The study's validations, as they were run.
        events: The event log.
        session: Where Ray keeps its logs.
        log: What the driver wrote, and the titles of all processes during the second trial.
        scrapes: What the head's metrics said, each time that they were new.
        storage: The study's database.
        tracking: MLflow's database.
        token: What the cluster asks for.
    """

    folder: Path
    spec: SweepSpec
    trials: tuple[Record, ...]
    checks: tuple[Record, ...]
    validations: tuple[Record, ...]
    events: tuple[Line, ...]
    session: Path
    log: str
    scrapes: tuple[tuple[Metric, ...], ...]
    storage: str
    tracking: str
    token: str

    @property
    def by_rows(self) -> dict[int, Record]:
        """Returns the study's trials by their micro-batch."""
        return {record.plan.micro_batch: record for record in self.trials}

    def value(self, name: str, **labels: str) -> float:
        """Returns the last scraped value of the only series with these labels."""
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


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home directory of the head's processes."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def metrics_port() -> int:
    """Port where the head serves metrics."""
    return free_port()


@pytest.fixture(scope="session")
def cluster(home: Path, metrics_port: int) -> Iterator[dict[str, str]]:
    """Starts a head that accepts jobs with a token; returns the environment to reach it."""
    often = {
        "RAY_metrics_report_interval_ms": str(REPORT_MS),
        "PYTHONPATH": str(ROOT),  # this checkout, wherever the command is installed from
    }
    with ray_head(home, token=True, metrics_port=metrics_port, **often) as environ:
        yield environ


@pytest.fixture(scope="session")
def eventful(
    cluster: dict[str, str],
    metrics_port: int,
    postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Eventful:
    """The sweep, run once."""
    folder = tmp_path_factory.mktemp("eventful")
    storage, tracking = postgres.new_database(), postgres.new_database()
    shutil.copy(awkward_model.__file__, folder / "awkward_model.py")
    (folder / "sweep.yaml").write_text(SPEC.replace("STORAGE", storage))
    scrapes, stop = list[tuple[Metric, ...]](), threading.Event()
    scraper = threading.Thread(target=_scrape, args=(metrics_port, scrapes, stop))
    scraper.start()
    try:
        driver = subprocess.Popen(
            [PLIMSOLL, "tune", "sweep.yaml", "--plain"],
            cwd=folder,
            env=cluster | TOKENS | {TRACKING_VARIABLE: tracking},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            umask=0,  # as some containers have it
        )
        assert driver.stdout is not None
        lines: list[str] = []
        with driver.stdout:
            for line in driver.stdout:
                lines.append(line)
                if "trial 1 starts" in line:
                    lines.append(_titles())
                    postgres.stop()
                if AWAY in line:  # the trial has ended, and could not be told
                    postgres.start()
        code = driver.wait(60)
    finally:
        stop.set()
        scraper.join()
        if postgres.process is None:  # other tests go on with it, whatever became of the sweep
            postgres.start()
    assert code == 0, "".join(lines)
    spec = load_spec(folder / "sweep.yaml")
    records = load_records(spec, "sweep")
    return Eventful(
        folder=folder,
        spec=spec,
        trials=tuple(record for record in records if not is_repeat(record)),
        checks=tuple(record for record in records if is_repeat(record)),
        validations=load_state(spec, "sweep").validations,
        events=tuple(read_events(folder / "plimsoll-runs" / "sweep" / "events.jsonl")),
        session=Path(cluster[SESSION]),
        log="".join(lines),
        scrapes=tuple(scrapes),
        storage=storage,
        tracking=tracking,
        token=cluster["RAY_AUTH_TOKEN"],
    )


def _scrape(port: int, done: list[tuple[Metric, ...]], stop: threading.Event) -> None:
    """Scrapes our metrics as often as the head has new ones, and once more at the end."""
    last = False
    while not last:
        last = stop.wait(REPORT_MS / 1000)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                text = page.read().decode()
        except (urllib.error.URLError, TimeoutError):
            continue
        # of thousands of lines, which take a tenth of a second to parse
        ours = "\n".join(line for line in text.splitlines() if OURS in line)
        done.append(tuple(text_string_to_metric_families(ours)))


def _titles() -> str:
    """Returns what `ps` shows of every process."""
    return "\n".join(
        " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])
    )
