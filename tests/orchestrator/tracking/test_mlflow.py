"""The study in MLflow: the real mlflow, on SQLite and behind a real server socket."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.reasons import Remeasures
from orchestrator.core.records import Record
from orchestrator.report.labels import fixed_knobs, plan_words
from orchestrator.tracking.mlflow_callback import MlflowCallback
from orchestrator.tracking.mlflow_store import store_uri
from orchestrator.tracking.mlflow_view import Pages, sweep_pages
from search_spaces.facts import CodeVersion, DataProfile, LengthBin, Provenance
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.records import BEGAN, make_records, make_space, make_spec, sweep
from tests.outcomes import every_outcome, make_expectation, make_measured, make_oom


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, mlflow_store: Callable[[Path], None]) -> Path:
    """One store for all tests of the module."""
    folder = tmp_path_factory.mktemp("runs")
    mlflow_store(folder)
    return folder


PROVENANCE = Provenance(
    at=BEGAN,
    user="ann",
    is_job=False,
    code=CodeVersion(
        commit="c" * 40, branch="faster", remote="https://example.com/model.git", modified=True
    ),
    context=(("team", "speed"),),
    data=DataProfile(
        name="a.txt and 1 more",
        digest="0123456789abcdef",
        files=("/data/a.txt", "/data/b.txt"),
        tokenizer="words.json",
        samples=40,
        tokens=900,
        histogram=(
            LengthBin(shortest=16, longest=16, samples=30),
            LengthBin(shortest=17, longest=64, samples=10),
        ),
    ),
)


def spec_in(folder: Path, **sections: Any) -> SweepSpec:
    return make_spec(study={"folder": str(folder)}, **sections)


def client_of(spec: SweepSpec) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store_uri(spec))


def log(
    spec: SweepSpec,
    records: Sequence[Record],
    *,
    study: str,
    before: Sequence[Record] = (),
    ended: bool = True,
    provenances: Sequence[Provenance] = (),
) -> MlflowCallback:
    """Runs a sweep with a callback."""
    said: list[str] = []
    listener = MlflowCallback(say=said.append, head_start_seconds=0, provenances=provenances)
    events = sweep(spec, make_space(spec), records, before=before, study=study, ended=ended)
    for event, state in events:
        listener.on_event(event, state)
    listener.close()
    assert (listener.problem, said) == (None, [])
    return listener


def runs_of(spec: SweepSpec, study: str) -> tuple[list[Any], list[Any]]:
    """Returns parents and trials of the study, trials by number."""
    client = client_of(spec)
    experiment = client.get_experiment_by_name(spec.tracking.experiment or study)
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    trials = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    return parents, sorted(trials, key=lambda run: int(run.data.tags["plimsoll.trial"]))


@pytest.fixture(scope="module")
def everything(folder: Path) -> tuple[Any, list[Any], tuple[Record, ...]]:
    """Logs a sweep with every kind of outcome: its run, trials and records."""
    spec = spec_in(folder)
    records = tuple(
        replace(record, forecast=make_expectation(30.9, 0.6) if 0 < record.number < 3 else None)
        for record in make_records(make_space(spec), every_outcome())
    )
    log(spec, records, study="everything", provenances=(PROVENANCE,))
    (parent,), trials = runs_of(spec, "everything")
    return parent, trials, records


Logged = tuple[Any, list[Any], tuple[Record, ...]]


def test_every_trial_is_a_run_in_the_sweeps_run(everything: Logged) -> None:
    parent, trials, records = everything

    assert len(trials) == len(records) == 12
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
    statuses = {run.data.tags["outcome"]: run.info.status for run in trials}
    assert statuses == {
        "measured": "FINISHED",
        "out_of_memory": "FAILED",
        "crashed": "FAILED",
        "timed_out": "FAILED",
        "diverged": "FAILED",
        "does_not_train": "FAILED",
        "refused": "FAILED",
        "cancelled": "KILLED",
    }
    for run, record in zip(trials, records, strict=True):
        assert run.info.start_time == round(record.started_at * 1000)
        assert run.info.end_time == round(record.ended_at * 1000)


def test_a_measured_trial_has_names_with_units(everything: Logged, folder: Path) -> None:
    _, trials, _ = everything
    run = trials[2]

    assert run.info.run_name == "best: ddp micro 2 x 4 eager padded"
    assert run.data.params["micro_batch"] == "2"
    assert run.data.params["data_ranks"] == "2"
    assert run.data.params["strategy"] == "ddp"
    assert run.data.params["tensor"] == "1"  # at rest everywhere, and among the page's columns
    assert "offload_optimizer" not in run.data.params  # at rest everywhere
    metrics = run.data.metrics
    assert metrics["samples_per_second"] == pytest.approx(41.2)
    assert metrics["samples_per_second_low"] < 41.2 < metrics["samples_per_second_high"]
    assert metrics["peak_memory_gib"] == pytest.approx(0.4, abs=1e-4)
    assert metrics["activations_gib"] > metrics["weights_gib"] > 0
    assert metrics["forward_seconds"] < metrics["backward_seconds"] < metrics["step_seconds"]
    assert (metrics["mfu"], metrics["paper_mfu"]) == (0.31, 0.26)
    assert (metrics["ceiling_tera_flops"], metrics["ceiling_measured"]) == (0.13, 1.0)
    assert metrics["host_cpu_percent"] == 96.5
    assert "device_power_watts" not in metrics  # nobody knew
    assert run.data.tags["feasible"] == "true"
    losses = client_of(spec_in(folder)).get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in losses] == list(range(14))
    assert losses[-1].timestamp == run.info.end_time
    steps = client_of(spec_in(folder)).get_metric_history(run.info.run_id, "step_time")
    assert [point.value for point in steps[:3]] == pytest.approx([4 * 16 / 41.2, *[16 / 41.2] * 2])


def test_forecasts_stand_beside_what_was_measured(everything: Logged) -> None:
    _, trials, _ = everything
    unforecast, oom, measured = (run.data.metrics for run in trials[:3])

    assert not any(name.startswith("forecast") for name in unforecast)
    for metrics in (oom, measured):
        assert metrics["forecast_samples_per_second"] == pytest.approx(30.9)
        assert metrics["forecast_samples_per_second_low"] == pytest.approx(30.9 / 1.25)
        assert metrics["forecast_samples_per_second_high"] == pytest.approx(30.9 * 1.25)
        assert metrics["forecast_peak_memory_gib"] == pytest.approx(0.3)
        assert metrics["forecast_fits"] == 0.93
        assert metrics["forecast_learned_from"] == 5
    assert measured["forecast_speed_error"] == pytest.approx(30.9 / 41.2 - 1)
    assert measured["forecast_memory_error"] == pytest.approx(0.6 / 0.8 - 1, abs=1e-5)
    assert "forecast_speed_error" not in oom


def test_a_failed_trial_says_why_and_what_it_wanted(everything: Logged) -> None:
    _, trials, _ = everything
    oom, crash = trials[1], trials[5]

    assert oom.data.metrics["memory_wanted_gib"] == pytest.approx(0.655)
    assert oom.data.metrics["memory_share"] == pytest.approx(1.31)
    assert oom.data.metrics["memory_excess"] == pytest.approx(0.31)
    assert oom.data.tags["detail"].startswith("out of device memory in forward")
    assert crash.data.tags["trace"].startswith("Traceback")
    assert crash.data.tags["detail"] == "crashed in build: ValueError: [no head] size given"
    assert trials[4].data.tags["feasible"] == "false"  # measured, over the line


def test_the_sweeps_run_holds_answer_spec_machine_packages_and_best_plan(
    everything: Logged, folder: Path, tmp_path: Path
) -> None:
    parent, _, records = everything
    client = client_of(spec_in(folder))

    assert parent.info.status == "FINISHED"
    assert parent.info.run_name == "everything"
    assert parent.data.params["model"] == "llama-tiny"
    assert parent.data.metrics["trials_out_of_memory"] == 2
    assert parent.data.metrics["speedup"] == pytest.approx(2.289, abs=1e-3)
    series = client.get_metric_history(parent.info.run_id, "best_samples_per_second")
    assert [(point.step, point.value) for point in series][:4] == [
        (1, 18.0),
        (2, 18.0),
        (3, 41.2),
        (4, 41.2),
    ]
    assert len(series) == len(records)
    assert "trial 2 is best" in parent.data.tags["mlflow.note.content"]
    assert "2.29 x" in parent.data.tags["mlflow.note.content"]
    assert parent.data.tags["kind"] == "sweep"
    assert parent.data.tags["detail"].startswith("trial 2 is best (ddp micro 2 x 4 eager padded")
    root = client.download_artifacts(parent.info.run_id, "", str(tmp_path))
    files = {path.name: path.read_text() for path in Path(root).iterdir() if path.is_file()}

    assert (folder / "mlartifacts").is_dir()
    assert SweepSpec.model_validate(yaml.safe_load(files["spec.yaml"])) == spec_in(folder)
    assert json.loads(files["system.json"])["cores_logical"] >= 1
    assert json.loads(files["workers.json"])["versions"]["torch"] == "2.13.0"
    assert "mlflow==" in files["packages.txt"]
    assert Plan.from_dict(json.loads(files["best_plan.json"])) == records[2].plan
    assert "<h1>Trial 2 is best" in files["report.html"]


def test_a_resumed_study_goes_on_in_the_same_run_and_adds_nothing_twice(folder: Path) -> None:
    spec = spec_in(folder)
    records = make_records(make_space(spec), [make_measured(20.0 + n) for n in range(5)])
    log(spec, records[:2], study="resumed", ended=False)
    (first,), trials = runs_of(spec, "resumed")
    assert (first.info.status, len(trials)) == ("KILLED", 2)

    # the driver that measured trial 2 died before MLflow heard of it
    log(spec, records[3:], before=records[:3], study="resumed")
    log(spec, [], before=records, study="resumed")

    (parent,), trials = runs_of(spec, "resumed")
    assert parent.info.run_id == first.info.run_id
    assert parent.info.status == "FINISHED"
    assert [run.data.tags["plimsoll.trial"] for run in trials] == ["0", "1", "2", "3", "4"]
    series = client_of(spec).get_metric_history(parent.info.run_id, "best_samples_per_second")
    assert [point.value for point in series] == [20.0, 21.0, 22.0, 23.0, 24.0]


def test_another_study_of_the_same_name_gets_a_run_of_its_own(folder: Path) -> None:
    spec = spec_in(folder)
    records = make_records(make_space(spec), [make_measured(20.0)])
    later = tuple(
        replace(record, started_at=record.started_at + 999, ended_at=record.ended_at + 999)
        for record in records
    )
    log(spec, records, study="twice")
    log(spec, [], before=later, study="twice")

    parents, trials = runs_of(spec, "twice")

    assert (len(parents), len(trials)) == (2, 2)


def test_a_store_that_breaks_costs_the_sweep_nothing(tmp_path: Path) -> None:
    spec = make_spec(tracking={"uri": f"sqlite:///{tmp_path / 'broken.db'}"})
    (tmp_path / "broken.db").write_bytes(b"no database, and longer than a header of sixteen bytes")
    said: list[str] = []
    listener = MlflowCallback(say=said.append, last_seconds=0.1, head_start_seconds=0)
    records = make_records(make_space(spec), [make_measured(20.0), make_oom()])
    for event, state in sweep(spec, make_space(spec), records):
        listener.on_event(event, state)
    listener.close()

    assert listener.problem is not None
    assert len(said) == 1
    assert "`plimsoll sync` adds the missing trials" in said[0]


def test_no_event_waits_for_the_store(folder: Path) -> None:
    """The store is locked while the sweep runs: waiting for it ends with a message after 5 s."""
    spec = spec_in(folder)
    log(spec, [], study="locked")
    listener = MlflowCallback()
    records = make_records(make_space(spec), every_outcome())
    with closing(sqlite3.connect(folder / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        for event, state in sweep(spec, make_space(spec), records, study="locked"):
            listener.on_event(event, state)
        assert listener.problem is None  # so nobody tried yet, or it is still being tried
    listener.close()

    assert listener.problem is None
    assert len(runs_of(spec, "locked")[1]) == len(records)


def test_the_address_opens_the_sweeps_table(everything: Logged, folder: Path) -> None:
    parent, _, _ = everything
    spec = spec_in(folder)
    view = "viewStateShareKey=plimsoll&workflowType=machine_learning"
    page = f"/#/experiments/{parent.info.experiment_id}/runs?{view}"

    answer = f"/#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}"
    assert sweep_pages(spec, "everything", port=7000) == Pages(
        trials=f"http://127.0.0.1:7000{page}",
        sweep=f"http://127.0.0.1:7000{answer}?workflowType=machine_learning",
    )
    assert sweep_pages(spec, "unknown") == Pages(trials="http://127.0.0.1:5000")
    tags = client_of(spec).get_experiment(parent.info.experiment_id).tags
    state = json.loads(tags["mlflow.sharedViewState.plimsoll"])
    shown = {key.split("`")[1] for key in state["selectedColumns"]} - {"Dataset"}
    logged = {*parent.data.tags}
    for run in everything[1]:
        logged |= {*run.data.metrics, *run.data.params, *run.data.tags}
    assert shown <= logged


def test_validations_are_runs_of_their_own_and_written_once(folder: Path) -> None:
    spec = spec_in(folder, validation={"enabled": True})
    space = make_space(spec)
    trials = make_records(space, [make_measured(20.0), make_measured(40.0)])
    validation = replace(trials[1], validation=True, started_at=trials[1].ended_at + 1)
    validation = replace(validation, ended_at=validation.started_at + 20)
    log(spec, (*trials, validation), study="validated")
    log(spec, (), before=(*trials, validation), study="validated")  # the same command again

    (parent,), runs = runs_of(spec, "validated")
    assert sorted(run.data.tags["kind"] for run in runs) == ["trial", "trial", "validation"]
    (run,) = (run for run in runs if run.data.tags["kind"] == "validation")
    assert run.info.run_name == f"validation: {plan_words(trials[1].plan, omit=fixed_knobs(space))}"
    assert (run.data.tags["validation_of"], run.data.tags["validation_holds"]) == ("1", "true")
    assert parent.data.tags["validated"] == "trial 1"
    assert parent.data.metrics["trials"] == 2
    assert parent.data.tags["lossy"] == ""
    assert "validation in a fresh worker group passed" in parent.data.tags["mlflow.note.content"]


def test_every_run_says_user_source_commit_and_data(everything: Logged) -> None:
    parent, trials, _ = everything

    for run in (parent, *trials):
        tags = run.data.tags
        assert {name: tags[name] for name in tags if name.startswith("mlflow.source.")} == {
            "mlflow.source.name": "plimsoll",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": "c" * 40,
            "mlflow.source.git.branch": "faster",
            "mlflow.source.git.repoURL": "https://example.com/model.git",
            "mlflow.source.git.dirty": "true",
        }
        assert (tags["mlflow.user"], tags["team"]) == ("ann", "speed")
        (found,) = run.inputs.dataset_inputs
        assert {tag.key: tag.value for tag in found.tags} == {"mlflow.data.context": "training"}
        assert (found.dataset.name, found.dataset.digest) == (
            "a.txt and 1 more",
            "0123456789abcdef",
        )
        assert found.dataset.source_type == "local"
        assert json.loads(found.dataset.source)["files"] == ["/data/a.txt", "/data/b.txt"]
        assert json.loads(found.dataset.profile) == {
            "num_rows": 40,
            "num_elements": 900,
            "tokens_per_row": {"16": 30, "17-64": 10},
            "tokenizer": "words.json",
        }


def test_repeats_decide_what_comes_first_and_is_named_best(folder: Path) -> None:
    """Trial 2 was fastest by luck; a resumed sweep finds a better plan, which takes the name."""
    spec = spec_in(folder, validation={"enabled": True})
    speeds = (20.0, 40.0, 48.0, 41.0, 30.0)
    outcomes = [make_measured(one, joules_per_token=2.0, gradient_norm=0.5) for one in speeds]
    trials = list(make_records(make_space(spec), outcomes))
    for at, first in ((3, 1), (4, 2)):
        again = Remeasures(trial=first)
        trials[at] = replace(trials[at], plan=trials[first].plan, reason=again)
    log(spec, trials, study="repeats")
    (parent,), runs = runs_of(spec, "repeats")
    client = client_of(spec)
    ordered = client.search_runs([parent.info.experiment_id], order_by=["metrics.rank ASC"])

    assert [run.info.run_name.partition(":")[0] for run in runs] == [
        *("baseline", "best", plan_words(trials[2].plan, omit=fixed_knobs(make_space(spec)))),
        *("repeat of 1", "repeat of 2"),
    ]
    assert [run.data.tags["kind"] for run in runs] == ["trial"] * 3 + ["repeat"] * 2
    assert ordered[0].data.tags["plimsoll.trial"] == "1"
    assert ordered[0].data.metrics["pooled_samples_per_second"] == pytest.approx(40.5, rel=1e-2)
    assert parent.data.metrics["best_samples_per_second"] == pytest.approx(40.5, rel=1e-2)
    assert ordered[0].data.metrics["joules_per_token"] == 2.0
    assert ordered[0].data.metrics["gradient_norm"] == 0.5

    better = replace(
        make_records(make_space(spec), [outcomes[0]] * 6)[5], outcome=make_measured(90.0)
    )
    log(spec, [better], before=trials, study="repeats")
    _, runs = runs_of(spec, "repeats")
    best = [run.data.tags["plimsoll.trial"] for run in runs if run.info.run_name[:5] == "best:"]
    assert best == ["5"]
