"""The controller on a real study in SQLite: storage, resumption, signals and secrets.

Reports of groups are scripted. `tests.orchestrator.core` tests what is decided, without a study.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import text

from orchestrator.core.events import (
    GroupStarted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.inputs import StopRequested
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.notes import ForecastsEnded, Message
from orchestrator.core.reasons import IsBaseline, Remeasures, Sampled, Validates
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.forecast.forecaster import SweepForecasts
from orchestrator.journal import Journal
from orchestrator.report.live import PlainView
from orchestrator.report.sweep_document import render_report, report_page
from orchestrator.study.reader import load_records, load_state
from orchestrator.study.storage import open_engine, storage_url
from orchestrator.tracking.events import line_of, to_json
from orchestrator.tracking.mlflow_fields import trial_tags
from search_spaces.costs.forecast import SearchPrior
from search_spaces.errors import StudyError
from search_spaces.plan import Plan
from search_spaces.trial import Cancelled, Crashed, PlanForecast, Stopped, TimedOut
from tests.orchestrator.controller.sweeps import PlayedCluster, Sweep, make_nodes
from tests.orchestrator.records import BEGAN, make_spec
from tests.orchestrator.study.values import stored_end
from tests.outcomes import CPU_FINGERPRINT, every_outcome, make_expectation, make_measured, make_oom

Make = Callable[..., Sweep]
VALUE = "0123456789abcdef-of-a-variable"
SECRETS = (
    "could not reach postgresql://ann:S3CRET@db/x or https://x?token=S3CRET&a=1:"
    f" password=S3CRET, api_key: S3CRET, {VALUE}"
)


@pytest.fixture
def sweep(tmp_path: Path) -> Make:
    """Returns a function that makes drivers on one study, with a node for each group."""

    def make(
        groups: int = 1, trials: int = 3, validated: bool = False, **attributes: object
    ) -> Sweep:
        spec = make_spec(
            study={"folder": str(tmp_path), "sampler": "random"},
            budget={"trials": trials, "minutes": 10, "trial_seconds": 60},
            validation={"enabled": validated, "repeats": 2},
        )
        nodes = PlayedCluster(make_nodes(*"abcdefgh"[:groups]))
        return Sweep(spec, nodes, groups, **attributes)  # type: ignore[arg-type]

    return make


def test_records_are_what_was_reported(sweep: Make) -> None:
    """Cancelled trials do not count towards the budget."""
    ours = sweep(trials=11)
    *others, cancelled = every_outcome()
    assert isinstance(cancelled, Cancelled)
    outcomes = (*others[:9], cancelled, *others[9:])
    ours.run(iter(outcomes))

    records = ours.state.records
    assert [record.outcome for record in records] == list(outcomes)
    assert records == load_records(ours.spec, "demo")
    assert [record.ended_at for record in records] == [BEGAN + 9 + 10 * n for n in range(12)]
    assert {record.fingerprint for record in records} == {CPU_FINGERPRINT}
    assert records[0].reason == IsBaseline()
    assert records[1].reason == Sampled(sampler="random")
    assert ours.recorder.kinds[:4] == [SweepStarted, TrialStarted, GroupStarted, TrialEnded]
    assert ours.recorder.heard[-1][1] == ours.state


class Scripted(SweepForecasts):
    """Forecasts ten samples/s more after each record; the first call returns none and says why."""

    problems = ("so",)
    is_silent = True

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        was_silent, self.is_silent = self.is_silent, False
        return None if was_silent else make_expectation(10.0 * (1 + len(state.records)))

    def prior(self, state: SweepState) -> SearchPrior | None:
        return None

    def problem(self) -> str | None:
        said, self.problems = self.problems, ()
        return said[0] if said else None


def test_records_keep_what_was_expected_before_their_results(sweep: Make) -> None:
    """The first trial starts while the model is still traced: its forecast comes as it ends."""
    ours = sweep(forecasts=Scripted())
    ours.run(iter([make_measured(), make_oom(), make_measured()]))

    records = ours.state.records
    forecasts = [record.forecast for record in records]
    rates = [forecast and forecast.samples_per_second.value for forecast in forecasts]
    assert rates == pytest.approx([10.0, 20.0, 30.0])
    assert records == load_records(ours.spec, "demo")
    assert [event.forecast for event in ours.events(TrialStarted)] == [None, *forecasts[1:]]
    assert [noted.note for noted in ours.state.notes] == [ForecastsEnded(error="so")]


def test_the_end_says_how_long_deepspeeds_operators_were_compiled(sweep: Make) -> None:
    driver = sweep(compile_seconds=65.0)
    driver.run()

    ended = load_state(driver.spec, "demo").ended
    assert ended is not None
    assert (ended.compile_seconds, driver.events(SweepStarted)[0].compile_seconds) == (65.0, 65.0)


def test_a_resumed_sweep_counts_and_never_measures_again(sweep: Make) -> None:
    first = sweep(validated=True)
    before = first.run()
    reasons = [type(record.reason) for record in first.state.records]
    assert reasons == [IsBaseline, Sampled, Sampled, Remeasures, Remeasures]
    assert first.state.records == load_records(first.spec, "demo")
    assert load_state(first.spec, "demo").ended == first.state.ended

    again = sweep(validated=True)
    assert again.run() == []
    assert again.recorder.kinds == [SweepStarted, SweepEnded]
    (validation,) = again.state.validations
    assert (validation,) == first.state.validations
    assert validation.reason == Validates(trial=validation.number)

    longer = sweep(trials=6)
    after = longer.run()
    assert len(after) == 3
    assert not set(before) & set(after)
    assert longer.state.resumed == len(reasons)


def test_a_trial_that_kills_two_drivers_is_blamed(sweep: Make) -> None:
    lost = sweep().ask().request
    assert sweep().ask().request.plan == lost.plan  # and this driver dies too

    third = sweep()
    (record,) = third.state.records
    assert isinstance(record.outcome, Crashed)
    assert record.outcome.cause == "driver_lost"
    assert record.plan == lost.plan
    assert TrialEnded in third.recorder.kinds
    assert lost.plan not in third.run()
    assert record in sweep().state.records  # blamed for good


def test_a_driver_that_finds_a_damaged_record_says_so_and_goes_on(sweep: Make) -> None:
    first = sweep()
    for _ in range(2):
        first.report(first.ask(), make_measured())
    with open_engine(storage_url(first.spec, "demo")).begin() as connection:
        damage = "UPDATE trial_user_attributes SET value_json = '[]' WHERE key = 'record'"
        connection.execute(text(f"{damage} AND trial_id = 1"))

    again = sweep()

    assert isinstance(again.recorder.heard[0][0], SweepStarted)
    assert "the record of trial 0 is left out" in again.notes[0]
    again.report(again.ask(), make_measured())
    assert [record.number for record in again.study.records()] == [1, 3]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_storage_that_comes_back_gets_results_but_no_trial_and_no_end(
    sweep: Make, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A result is missing there until the next driver has read it from a file."""
    ours, rates = sweep(groups=2, trials=2), (20.0, 30.0)

    def fail_once(*_: object) -> None:
        monkeypatch.undo()
        raise StudyError("gone")

    for number, run in enumerate([ours.ask(), ours.ask()]):
        if number == failing:
            monkeypatch.setattr(ours.study, "tell", fail_once)
        ours.report(run, make_measured(rates[number]))

    assert str(ours.controller.error) == "gone"
    assert ours.controller.state.ended
    assert ours.next() is None
    assert ours.outcomes == [make_measured(rates[1 - failing])]
    assert [record.outcome for record in ours.state.records] == ours.outcomes
    assert ours.events(SweepEnded) == []
    assert load_state(ours.spec, "demo").ended is None
    assert sorted(ours.cluster.dismissed) == ours.cluster.started


def test_a_stop_lets_the_next_driver_run_the_trial(sweep: Make) -> None:
    ours = sweep()
    ours.report(ours.ask(), make_measured())
    stopped = ours.ask()
    ours.stop("Ctrl-C")

    assert ours.recorder.kinds[-2:] == [TrialEnded, SweepEnded]
    assert ours.state.records[-1].outcome == Cancelled(cause=Stopped(by="Ctrl-C"))
    assert ours.state.running == ()
    assert ours.next() is None
    ours.report(stopped, make_measured())  # which was under way when the signal came
    ours.stop("SIGTERM")
    assert ours.recorder.kinds.count(SweepEnded) == 1

    again = sweep()
    assert len(again.state.records) == 1  # what was cancelled is no measurement
    assert again.state.untried_count == len(again.state.space.table) - 1
    assert len(again.run()) == 2


def test_a_signal_while_a_result_is_stored_ends_the_loop_after_it(
    sweep: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, stop = sweep(), StopRequested(cause=Stopped(by="Ctrl-C"), at=0.0)
    run, tell = ours.ask(), ours.study.tell

    def interrupted(record: Record) -> None:
        ours.controller.put(stop)  # as a signal's handler does
        tell(record)

    monkeypatch.setattr(ours.study, "tell", interrupted)
    ours.report(run, make_measured())
    assert ours.state.running  # the next trial, which is closed
    ours.controller.run()

    assert ours.outcomes == [make_measured(), Cancelled(cause=stop.cause)]
    assert stored_end(ours.spec, "demo") == ours.state.ended
    assert ours.recorder.heard[-1] == (ours.state.ended, ours.state)
    assert sweep().study.interrupted() == ()


@dataclass
class Hanging(PlayedCluster):
    """A cluster that hangs while it releases workers, until the watchdog ends the driver."""

    give_up: Callable[[], None] = lambda: None

    def send(self, group: str, message: Run | Release | Dismiss) -> None:
        super().send(group, message)
        if isinstance(message, Release):
            self.give_up()
            raise TimeoutError  # the process ends here


def test_a_result_that_waits_for_a_cluster_that_is_gone_is_stored(tmp_path: Path) -> None:
    spec, cluster = make_spec(study={"folder": str(tmp_path), "sampler": "random"}), Hanging()
    ours, outcome = Sweep(spec, cluster), TimedOut(deadline_seconds=60.0, detail="too slow")
    cluster.give_up = lambda: ours.controller.give_up(Stopped(by="the head has died"))
    run = ours.ask()

    with pytest.raises(TimeoutError):
        ours.report(run, outcome)

    assert [record.outcome for record in load_records(spec, "demo")] == [outcome]


def test_a_cluster_that_is_gone_blames_no_plan_however_often(sweep: Make) -> None:
    first = sweep()
    lost = first.ask().request
    first.controller.give_up(Stopped(by="the head has died"))
    assert first.recorder.kinds[-2:] == [TrialEnded, SweepEnded]
    assert first.state.records[-1].outcome == Cancelled(cause=Stopped(by="the head has died"))

    second = sweep()  # at once: the study was released
    assert second.study.interrupted() == ()
    while second.ask().request.plan != lost.plan:
        pass
    second.controller.give_up(Stopped(by="the head has died"))

    third = sweep()
    assert third.state.records == ()
    assert lost.plan in third.run()


def test_workers_are_given_no_address_that_may_hold_a_password(tmp_path: Path) -> None:
    """The request of a trial is stored in the memory of a cluster."""
    here = f"sqlite:///{tmp_path}/hunter2.db"
    spec = make_spec(study={"storage": here}, tracking={"uri": "http://ann:hunter2@mlflow"})
    ours = Sweep(spec)

    run = ours.ask()

    assert "hunter2" not in repr(run)
    assert run.request.spec.train == spec.train
    assert ours.state.spec == spec


def test_s5_no_listener_and_no_record_has_secrets_of_messages(sweep: Make, tmp_path: Path) -> None:
    log, said, file = io.StringIO(), io.StringIO(), tmp_path / "journal.jsonl"
    ours = sweep(callbacks=(PlainView(log),), secrets=(VALUE,), journal=Journal(file))
    crashed = Crashed(
        cause="worker_died", rank=0, phase="build", detail=SECRETS, trace=f"Traceback\n{SECRETS}"
    )
    ours.controller.note(Message(text=SECRETS))
    ours.run(iter([crashed, crashed, make_measured(), make_measured()]))
    state = ours.state
    Console(file=said, width=300).print(render_report(state, ""))
    events = [to_json(line_of(event, at)) for event, at in ours.recorder.heard]
    everything = {
        "study": repr(ours.study.records()),
        "log": log.getvalue(),
        "report": said.getvalue(),
        "page": report_page(state),
        "events": "\n".join(events),
        "mlflow": repr([trial_tags(record, state.spec, "demo") for record in state.records]),
        "journal": file.read_text(),
    }

    for name, written in everything.items():
        assert "S3CRET" not in written, name
        assert VALUE not in written, name
        assert "postgresql://ann:***@db/x" in written, name
    assert any('"why"' in line or '"reason"' in line for line in events)
