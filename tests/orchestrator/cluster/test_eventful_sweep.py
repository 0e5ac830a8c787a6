"""One sweep that meets every ending: what users see in its log, study, MLflow and metrics.

Trials raise, diverge, die, hang and run out of memory; one validation fails and the next one holds;
the databases of study and MLflow are stopped during the second trial.
"""

import os
import re
import shutil
import stat
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.core.objective import throughput
from orchestrator.core.reasons import ChecksMachine, Validates
from orchestrator.core.records import Record
from orchestrator.core.repeats import is_repeat
from orchestrator.core.state import SweepState
from orchestrator.study.reader import load_records, load_state
from orchestrator.tracking.metrics import metrics
from orchestrator.workspace import STORAGE_VARIABLE, TRACKING_VARIABLE
from search_spaces.specification.load import load_spec
from search_spaces.trial import Crashed, Diverged, Measured, OutOfMemory, TimedOut
from tests.dashboard import expressions, names_and_labels
from tests.orchestrator.cli.commands import command
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import PLIMSOLL
from tests.orchestrator.cluster.conftest import REPORT_MS
from tests.orchestrator.event_lines import read_events
from tests.rigs.postgres import PASSWORD, QUOTED, Server
from tests.rigs.ray_head import SESSION

pytestmark = pytest.mark.thorough

OURS = "ray_plimsoll_"
AWAY = "the study's storage is unavailable ("
# In the order in which the sampler comes to them, those whose group is replaced come last
TOO_LARGE, SOUND, FORGETS, RAISES, DIVERGES, HANGS, DIES = 128, 16, 32, 2, 8, 64, 4
MICRO_BATCHES = (1, RAISES, DIES, DIVERGES, SOUND, FORGETS, HANGS, TOO_LARGE)
DEADLINE_SECONDS = 60
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
    """The sweep after its end.

    Attributes:
        folder: Where it was started; `sweep.yaml` and `plimsoll-runs` are in there.
        trials: The study's trials by micro-batch, each of another plan.
        checks: Trials of measured plans, to tell whether the machine works.
        state: What is known of the study, with its validations.
        log: What the driver wrote.
        scrapes: What the head's metrics said, each time that they were new.
        storage: The study's database.
        tracking: MLflow's database.
    """

    folder: Path
    trials: dict[int, Record]
    checks: tuple[Record, ...]
    state: SweepState
    log: str
    scrapes: tuple[tuple[Metric, ...], ...]
    storage: str
    tracking: str

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


@pytest.fixture(scope="module")
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
    scraper = threading.Thread(target=scrape, args=(metrics_port, scrapes, stop))
    scraper.start()
    try:
        log = driven(folder, cluster | TOKENS | {TRACKING_VARIABLE: tracking}, postgres)
    finally:
        stop.set()
        scraper.join()
        if postgres.process is None:  # other tests go on with it, whatever became of the sweep
            postgres.start()
    spec = load_spec(folder / "sweep.yaml")
    records = load_records(spec, "sweep")
    return Eventful(
        folder=folder,
        trials={one.plan.micro_batch: one for one in records if not is_repeat(one)},
        checks=tuple(record for record in records if is_repeat(record)),
        state=load_state(spec, "sweep"),
        log=log,
        scrapes=tuple(scrapes),
        storage=storage,
        tracking=tracking,
    )


def driven(folder: Path, environ: dict[str, str], postgres: Server) -> str:
    """Runs the sweep, and stops its databases for some time; returns its log."""
    driver = subprocess.Popen(
        [PLIMSOLL, "tune", "sweep.yaml", "--plain"],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0,  # as some containers have it
    )
    assert driver.stdout is not None
    log = ""
    with driver.stdout as lines:
        for line in lines:
            log += line
            if "trial 1 starts" in line:
                postgres.stop()
            if AWAY in line:  # the trial has ended, and could not be told
                postgres.start()
    assert driver.wait(600) == 0, log
    return log


def scrape(port: int, done: list[tuple[Metric, ...]], stop: threading.Event) -> None:
    """Scrapes our metrics as often as the head has new ones, and once more at the end."""
    last = False
    while not last:
        last = stop.wait(REPORT_MS / 1000)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600) as page:
                text = page.read().decode()
        except (urllib.error.URLError, TimeoutError):
            continue
        # of thousands of lines, which take a tenth of a second to parse
        ours = "\n".join(line for line in text.splitlines() if OURS in line)
        done.append(tuple(text_string_to_metric_families(ours)))


def test_each_plan_ends_in_its_own_way_and_the_sweep_goes_on(eventful: Eventful) -> None:
    outcomes = {rows: trial.outcome for rows, trial in eventful.trials.items()}
    crashed, hung = outcomes[RAISES], outcomes[HANGS]

    assert sorted(outcomes) == list(MICRO_BATCHES)
    assert all(isinstance(outcomes[rows], Measured) for rows in (1, SOUND, FORGETS))
    assert isinstance(crashed, Crashed)
    assert "awkward_model.py" in crashed.trace
    assert isinstance(outcomes[DIVERGES], Diverged)
    assert isinstance(outcomes[TOO_LARGE], OutOfMemory)
    assert isinstance(hung, TimedOut)
    assert hung.deadline_seconds == DEADLINE_SECONDS
    assert "\x1b" not in eventful.log
    assert "Traceback" not in eventful.log, eventful.log
    for words in ("out of device memory", "rows of two", "loss was nan", "timed out after 60 s"):
        assert words in eventful.log
    assert "the worker group is replaced" in eventful.log


def test_a_killed_worker_is_a_crash_of_that_worker(eventful: Eventful) -> None:
    outcome = eventful.trials[DIES].outcome

    assert isinstance(outcome, Crashed)
    assert outcome.cause == "worker_died"
    (check,) = eventful.checks  # it died twice: a measured plan has shown that the machine works
    assert isinstance(check.reason, ChecksMachine)
    assert check.reason.suspect == eventful.trials[DIES].number
    assert isinstance(check.outcome, Measured)


def test_a_model_that_cannot_be_traced_has_no_forecasts(eventful: Eventful) -> None:
    (note,) = [line for line in eventful.log.splitlines() if "no forecast" in line]

    assert "note: trials have no forecast" in note
    said, _, priority = note.rpartition(" ")
    assert said.endswith("rows of two are not for me at priority")
    assert int(priority) > os.nice(0)  # the trace steps back
    assert all(record.forecast is None for record in eventful.trials.values())


def test_a_sweep_outlives_its_database(eventful: Eventful) -> None:
    assert AWAY in eventful.log
    assert "the study's storage is back after " in eventful.log


def test_plans_are_validated_from_the_fastest_on_until_one_holds(eventful: Eventful) -> None:
    failed, held = eventful.state.validations

    assert [one.plan.micro_batch for one in (failed, held)] == [FORGETS, SOUND]
    for validation in (failed, held):
        assert validation.number == eventful.trials[validation.plan.micro_batch].number
        assert validation.reason == Validates(trial=validation.number)
    assert isinstance(failed.outcome, Measured)  # it trains on half of the samples
    words = f"the validation of trial {failed.number} failed: its losses differ by up to"
    assert words in eventful.log
    assert re.search(r"from those of trial \d over the first \d+ steps", eventful.log)
    assert f"best is trial {held.number}, validated" in eventful.log


def test_mlflow_has_a_run_for_each_trial_and_validation(eventful: Eventful) -> None:
    client = MlflowClient(eventful.tracking)
    experiment = client.get_experiment_by_name("team")
    assert experiment is not None
    runs = [run.data for run in client.search_runs([experiment.experiment_id])]
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.tags)
    trials = [run for run in runs if run.tags.get("kind") in ("trial", "repeat")]
    validations = {
        int(run.tags["validation_of"]): run for run in runs if run.tags.get("kind") == "validation"
    }

    (died,) = (run for run in trials if run.tags["outcome"] == "cancelled")  # which ran once more
    assert died.params["micro_batch"] == str(DIES)
    outcomes = sorted(run.tags["outcome"] for run in trials if run is not died)
    ended = (*eventful.trials.values(), *eventful.checks)
    assert outcomes == sorted(record.outcome.kind for record in ended)
    holds = [validations[one.number].tags["validation_holds"] for one in eventful.state.validations]
    assert holds == ["false", "true"]
    held = validations[eventful.state.validations[-1].number]
    assert held.metrics["checkpoint_gib"] > 0
    assert held.metrics["loss_difference"] < 1e-4
    assert parent.tags["validated"] == f"trial {eventful.state.validations[-1].number}"


def test_metrics_are_those_of_the_study(eventful: Eventful) -> None:
    events = read_events(eventful.folder / "plimsoll-runs" / "sweep" / "journal.jsonl")
    ends = [line for line in events if line["event"] == "trial_ended" and not line["validation"]]
    ended = Counter(line["outcome"] for line in ends)
    best, baseline = eventful.state.best, eventful.trials[1]
    assert best is not None
    assert best.plan == eventful.state.validations[-1].plan

    assert {kind: eventful.value("trials_total", outcome=kind) for kind in ended} == ended
    assert eventful.value("best_samples_per_second") == pytest.approx(throughput(best))
    assert eventful.value("baseline_samples_per_second") == pytest.approx(throughput(baseline))
    assert eventful.value("best_objective", metric="samples_per_second") == pytest.approx(
        throughput(best)
    )
    assert eventful.value("out_of_memory_share") == pytest.approx(1 / len(ends))
    assert eventful.value("trials_running") == 0
    assert eventful.value("groups") == 1
    assert eventful.value("validation_state", state="validated") == 1
    assert eventful.value("validation_state", state="open") == 0


def test_what_the_dashboard_asks_for_is_there_and_described(eventful: Eventful) -> None:
    families = {family.name: family for scrape in eventful.scrapes for family in scrape}
    exported = {
        sample.name: set(sample.labels)
        for scrape in eventful.scrapes
        for family in scrape
        for sample in family.samples
    }

    for expression in expressions():
        for name, labels in names_and_labels(expression):
            assert labels <= exported.get(name, set()), f"{name} in {expression}"
    assert {f"ray_{metric.name}" for metric in metrics()} == set(families)
    for metric in metrics():
        family = families[f"ray_{metric.name}"]
        assert (family.documentation, family.type) == (metric.help, metric.kind)


def texts_in(folder: Path) -> list[str]:
    return [file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()]


def everything_in(server: Server, database: str) -> str:
    """Returns every row of every table."""
    names = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database)
    return "\n".join(
        f"{name}: {row}" for (name,) in names for row in server.execute(f'TABLE "{name}"', database)
    )


def test_no_secret_is_left(
    eventful: Eventful,
    cluster: dict[str, str],
    postgres: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The copy of the specification has no password either, and works once it is set."""
    monkeypatch.chdir(eventful.folder)
    (eventful.folder / "sweep.yaml").unlink()  # which has it
    (eventful.folder / "awkward_model.py").unlink()  # the study alone is needed
    code, refused = command(capsys, "report")
    assert code == 2
    assert "no password supplied" in refused
    assert f"set {STORAGE_VARIABLE}" in refused
    monkeypatch.setenv(STORAGE_VARIABLE, eventful.storage)
    code, report = command(capsys, "report")
    assert code == 0, report
    assert re.search(r"measured +3\b", report), report
    assert "validation in a fresh worker group passed" in report
    session = Path(cluster[SESSION])
    written = [*texts_in(eventful.folder), *texts_in(session)]

    assert list(session.rglob("raylet.out"))
    secrets = (PASSWORD, QUOTED, cluster["RAY_AUTH_TOKEN"], *TOKENS.values())
    for each in (eventful.log, refused, report, *written):
        assert not [secret for secret in secrets if secret in each]
    for database in (eventful.storage, eventful.tracking):
        dump = everything_in(postgres, database.rpartition("/")[2])
        assert len(dump) > 1000
        assert not [secret for secret in secrets if secret in dump]
        assert ("trial_user_attributes" in dump) == (database == eventful.storage)
    there = [path for path in eventful.folder.rglob("*") if not path.is_symlink()]
    assert not [path for path in there if path.stat().st_mode & stat.S_IWOTH]
