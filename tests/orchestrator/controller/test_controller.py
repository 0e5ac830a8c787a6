"""The controller with scripted reports of groups, on a real study in SQLite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.failures import RUNNER_DIED
from orchestrator.core.notes import ForecastsEnded, GroupReplaced, Message
from orchestrator.core.reasons import (
    AllTried,
    BudgetSpent,
    IsBaseline,
    Retry,
    Sampled,
    WorkersCrashed,
)
from orchestrator.core.records import Record, closed_record
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.forecast.forecaster import AbstractForecasts, NoForecasts
from orchestrator.report.reasons import note_words
from orchestrator.study.reader import load_records
from search_spaces.costs.forecast import SearchPrior
from search_spaces.plan import Plan
from search_spaces.trial import (
    Cancelled,
    Crashed,
    DriverDied,
    Measured,
    PlanForecast,
    Stopped,
    WorkersFailed,
)
from tests.orchestrator.controller.sweeps import DIED, Clock, PlayedCluster, Sweep, make_nodes
from tests.orchestrator.records import BEGAN, make_spec
from tests.orchestrator.study.values import stored_end
from tests.outcomes import (
    CPU_FINGERPRINT,
    every_outcome,
    make_expectation,
    make_measured,
    make_oom,
)

Make = Callable[..., Sweep]


@pytest.fixture
def sweep(tmp_path: Path) -> Make:
    """Returns a function that makes drivers on one study, with a node for each group."""

    def make(
        forecasts: AbstractForecasts | None = None,
        racing: bool = True,
        groups: int = 1,
        callbacks: tuple[AbstractCallback, ...] = (),
        **budget: object,
    ) -> Sweep:
        budget = {"trials": 3, "minutes": 10, "trial_seconds": 60, **budget}
        spec = make_spec(
            study={"folder": str(tmp_path), "sampler": "random"},
            objective={"racing": racing},
            budget=budget,
        )
        return Sweep(
            spec,
            PlayedCluster(make_nodes(*"abcdefgh"[:groups])),
            groups,
            forecasts=forecasts or NoForecasts(),
            callbacks=callbacks,
        )

    return make


def test_a_sweep_in_order(sweep: Make) -> None:
    ours = sweep()
    plans = ours.run()

    trial = [TrialStarted, TrialEnded]
    assert ours.recorder.kinds == [
        SweepStarted,
        TrialStarted,
        GroupStarted,  # as soon as it is known of
        TrialEnded,
        *trial,
        *trial,
        SweepEnded,
    ]
    assert plans[0] == ours.state.space.baseline
    assert len(set(plans)) == 3
    ended = ours.state.ended
    assert ended is not None
    assert ended.reason == BudgetSpent(limit="trials", amount=3)
    assert ours.next() is None
    assert ours.recorder.kinds.count(SweepEnded) == 1


def test_each_event_comes_with_the_state_after_it(sweep: Make) -> None:
    ours = sweep()
    ours.run()

    counted = [len(state.records) for _, state in ours.recorder.heard]
    assert counted == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert [len(state.running) for _, state in ours.recorder.heard] == [0, 1, 1, 0, 1, 0, 1, 0, 0]
    assert ours.recorder.heard[-1][1] == ours.state


def test_records_are_what_was_reported(sweep: Make) -> None:
    """Cancelled trials do not count towards the budget."""
    ours = sweep(trials=10)
    *others, cancelled = every_outcome()
    assert isinstance(cancelled, Cancelled)
    outcomes = (*others[:9], cancelled, *others[9:])
    ours.run(iter(outcomes))

    records = ours.state.records
    assert [record.outcome for record in records] == list(outcomes)
    assert records == load_records(ours.spec, "demo")
    assert [record.ended_at for record in records] == [BEGAN + 9 + 10 * n for n in range(11)]
    assert {record.fingerprint for record in records} == {CPU_FINGERPRINT}
    assert records[0].reason == IsBaseline()
    assert records[1].reason == Sampled(sampler="random")


def test_time_ends_a_sweep(sweep: Make) -> None:
    ours = sweep(trials=24, minutes=0.5)

    assert len(ours.run()) == 3
    ended = ours.state.ended
    assert ended is not None
    assert ended.reason == BudgetSpent(limit="minutes", amount=0.5)


def test_a_group_receives_all_that_a_trial_needs(sweep: Make) -> None:
    ours = sweep(minutes=2, trial_seconds=90)
    first = ours.ask()
    ours.clock.now += 75
    ours.report(first, make_oom())
    second = ours.ask()

    assert (first.deadline_seconds, second.deadline_seconds) == (90.0, 35.0)
    announced = [event.deadline_seconds for event in ours.events(TrialStarted)]
    assert announced == [90.0, 35.0]
    assert (first.device, first.folder) == ("cpu", str(Path.cwd()))
    study = ours.spec.study.model_copy(update={"name": "demo"})  # which workers need
    assert first.request.spec == ours.spec.model_copy(update={"study": study})
    assert first.request.snapshot == str(Path(study.folder, "demo", "snapshots", "trial-0"))


def test_faults_are_noted_after_the_trial(sweep: Make) -> None:
    ours = sweep(trials=1)
    ours.report(ours.ask(), make_oom(), faults=("one", "two"))

    assert ours.recorder.kinds[-4:] == [TrialEnded, Noted, Noted, SweepEnded]
    assert [noted.note for noted in ours.state.notes] == [Message(text="one"), Message(text="two")]


def test_a_group_is_announced_once_per_change(sweep: Make) -> None:
    ours = sweep(trials=5)
    other = replace(CPU_FINGERPRINT, hosts=2)
    for seen in (None, CPU_FINGERPRINT, CPU_FINGERPRINT, other, None):
        ours.report(ours.ask(), make_measured(), fingerprint=seen)

    groups = ours.events(GroupStarted)
    assert [group.fingerprint for group in groups] == [CPU_FINGERPRINT, other]
    assert {group.world_size for group in groups} == {2}


def test_a_lost_runner_is_a_crash_and_the_sweep_goes_on(sweep: Make) -> None:
    ours = sweep()
    lost = ours.ask()
    ours.lose(lost)
    assert ours.state.records[0].outcome == Cancelled(cause=WorkersFailed(outcome=RUNNER_DIED))
    again = ours.ask()
    assert again.request.plan == lost.request.plan
    assert again.group != lost.group
    ours.lose(again, "a process still runs")

    record = ours.state.records[-1]
    assert isinstance(record.outcome, Crashed)
    assert record.outcome.cause == "worker_died"
    assert record.plan == again.request.plan
    assert ours.notes == ["a process still runs"]
    assert again.request.plan not in ours.run()


def test_a_trial_whose_worker_died_is_run_once_more(sweep: Make) -> None:
    ours = sweep(trials=3)
    first = ours.ask()
    ours.report(first, DIED, faults=("so",))
    second = ours.ask()
    assert second.request.plan == first.request.plan
    began = ours.events(TrialStarted)[-1]
    assert began.retry_of == 0
    assert began.reason == Retry(trial=0, cause=WorkersFailed(outcome=DIED))
    assert [note.note for note in ours.state.notes] == [
        GroupReplaced(reason=WorkersCrashed(cause="worker_died")),
        Message(text="so"),
    ]
    ours.report(second, make_measured())

    assert isinstance(ours.state.records[-1].outcome, Measured)
    assert len(ours.run()) == 2  # what was cut short counts for nothing


def test_a_plan_under_which_workers_die_twice_is_to_blame(sweep: Make) -> None:
    ours = sweep()
    for _ in range(2):
        run = ours.ask()
        ours.report(run, DIED)

    assert ours.state.records[-1].outcome == DIED
    assert run.request.plan not in ours.run()


# ---------------------------------------------------------------- what is expected


class Scripted(AbstractForecasts):
    """Forecasts ten samples/s more after each record; the first `silent` calls return none."""

    def __init__(self, silent: int = 0, problem: str | None = None) -> None:
        self._silent = silent
        self._problem = problem

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        self._silent -= 1
        if self._silent >= 0:
            return None
        return make_expectation(10.0 * (1 + len(state.records)))

    def prior(self, state: SweepState) -> SearchPrior | None:
        return None

    def problem(self) -> str | None:
        problem, self._problem = self._problem, None
        return problem


def rates(records: Sequence[Record]) -> list[float | None]:
    return [
        None if record.forecast is None else record.forecast.samples_per_second.value
        for record in records
    ]


def test_records_keep_what_was_expected_when_they_were_asked_for(sweep: Make) -> None:
    ours = sweep(forecasts=Scripted())
    ours.run(iter([make_measured(), make_oom(), make_measured()]))

    records = ours.state.records
    assert rates(records) == pytest.approx([10.0, 20.0, 30.0])
    assert records == load_records(ours.spec, "demo")
    announced = [event.forecast for event in ours.events(TrialStarted)]
    assert announced == [record.forecast for record in records]


def test_a_forecast_may_come_while_its_trial_runs(sweep: Make) -> None:
    """The first trial starts while the model is still traced."""
    ours = sweep(forecasts=Scripted(silent=1))
    first = ours.ask()
    assert ours.state.running[0].forecast is None
    ours.report(first, make_measured())

    assert rates(ours.state.records) == [pytest.approx(10.0)]  # the trial taught nothing yet


def test_a_lost_runner_keeps_its_forecast(sweep: Make) -> None:
    ours = sweep(forecasts=Scripted())
    for _ in range(2):
        ours.lose(ours.ask())

    assert rates(ours.state.records)[1:] == [pytest.approx(20.0)]


def test_deadlines_follow_forecasts(sweep: Make) -> None:
    """The first has the user's limit; the second a minute, measured steps and its needs."""
    ours = sweep(trial_seconds=500, forecasts=Scripted())
    first = ours.ask()
    ours.report(first, make_measured())
    second = ours.ask()

    assert first.deadline_seconds == 500.0
    step, build = 1.25 * 16 / 20.0, 0.4
    assert second.deadline_seconds == pytest.approx(60 + 60 + 4 * (3 * step + build))


@pytest.mark.parametrize("racing", [True, False])
def test_a_trial_has_the_best_so_far_to_beat(sweep: Make, racing: bool) -> None:
    """A plan that breaks the headroom is no incumbent."""
    ours = sweep(racing=racing, trials=5)
    to_beat = []
    for outcome in (make_measured(50.0, 0.99), make_measured(40.0), make_measured(45.0)):
        run = ours.ask()
        to_beat.append(run.request.incumbent)
        ours.report(run, outcome)
    to_beat.append(ours.ask().request.incumbent)

    best = [None, None, make_measured(40.0).step_seconds, make_measured(45.0).step_seconds]
    assert to_beat == (best if racing else [None] * 4)


def test_why_there_are_no_forecasts_is_noted_once(sweep: Make) -> None:
    ours = sweep(forecasts=Scripted(silent=99, problem="so"))
    ours.run()

    note = ForecastsEnded(error="so")
    assert [noted.note for noted in ours.state.notes] == [note]
    assert note_words(note) == "trials have no forecast: so"
    assert rates(ours.state.records) == [None, None, None]


# ---------------------------------------------------------------- going on


def test_a_resumed_sweep_counts_and_never_measures_again(sweep: Make) -> None:
    before = sweep().run()
    again = sweep()
    assert again.run() == []
    assert again.recorder.kinds == [SweepStarted, SweepEnded]

    longer = sweep(trials=6)
    after = longer.run()
    assert len(after) == 3
    assert not set(before) & set(after)
    assert longer.state.resumed == 3


def test_a_space_that_is_used_up_ends_the_sweep(tmp_path: Path) -> None:
    only = {"micro_batch": [1, 2], "zero_stage": [0], "batching": ["padded"]}
    only |= {"attention": ["sdpa"], "checkpoint_ratio": [0.0]}
    ours = Sweep(make_spec(space=only, study={"folder": str(tmp_path)}))

    assert len(ours.run()) == 2
    ended = ours.state.ended
    assert ended is not None
    assert ended.reason == AllTried(plans=2)


def test_several_trials_under_way_are_of_different_plans(sweep: Make) -> None:
    """They end in any order; none starts beyond the budget, and the sweep ends after all."""
    ours = sweep(trials=4, groups=3)
    first, second, third = ours.ask(), ours.ask(), ours.ask()
    ours.report(second, make_measured())
    fourth = ours.ask()

    runs = [first, second, third, fourth]
    assert len({run.request.plan for run in runs}) == 4
    assert len({run.group for run in runs}) == 3
    for run in (third, first, fourth):
        assert ours.next() is None
        assert SweepEnded not in ours.recorder.kinds
        ours.report(run, make_measured())
    assert ours.next() is None
    assert [record.number for record in ours.state.records] == [1, 2, 0, 3]
    assert ours.recorder.kinds[-1] is SweepEnded


def test_each_tick_starts_one_more_group(sweep: Make) -> None:
    """The first group does not wait until a trial was chosen for the last one."""
    ours = sweep(trials=4, groups=3)
    ours.controller.tick()
    assert len(ours.cluster.started) == 2  # one as it learns of nodes
    ours.controller.tick()
    assert len(ours.cluster.started) == 3
    assert [run.group for run in ours.cluster.runs] == ours.cluster.started

    run = ours.ask()
    ours.report(run, make_measured())
    assert [run.group for run in ours.cluster.runs][2:] == [run.group]


def test_a_stop_closes_all_that_is_under_way(sweep: Make) -> None:
    ours = sweep(trials=4, groups=2)
    runs = [ours.ask(), ours.ask()]
    ours.stop("Ctrl-C")

    assert ours.state.running == ()
    again = sweep(trials=4)
    assert {run.request.plan for run in runs} <= {*again.study.untried()}


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
    assert ours.recorder.kinds[-1] is SweepEnded
    assert ours.recorder.kinds.count(SweepEnded) == 1

    again = sweep()
    assert len(again.state.records) == 1  # what was cancelled is no measurement
    assert stopped.request.plan in again.study.untried()
    assert len(again.run()) == 2


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


def test_a_stop_just_after_the_study_has_the_result(sweep: Make) -> None:
    """Ctrl-C may come after a record is stored and before its event."""
    ours = sweep()
    run = ours.ask()
    record = closed_record(run.request.number, run.request.plan, make_oom(), IsBaseline(), at=1.0)
    ours.study.tell(record)
    ours.stop("Ctrl-C")

    assert [record.outcome for record in sweep().state.records] == [make_oom()]


class Interrupted(AbstractCallback):
    """Stands for a signal that comes while an event of this kind is handled."""

    def __init__(self, kind: type[Event]) -> None:
        self._kind = kind

    def on_event(self, event: Event, state: SweepState) -> None:
        if isinstance(event, self._kind):
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


@pytest.mark.parametrize("trials", [1, 3])
def test_a_signal_while_a_result_is_stored_loses_no_end(
    sweep: Make, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """Callbacks receive the end of the trial and of the sweep, and the plan can run again."""
    ours = sweep(trials=trials)
    run = ours.ask()

    def interrupt(record: Record) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ours.study, "tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ours.report(run, make_measured())
    ours.stop("Ctrl-C")

    assert ours.recorder.kinds[-2:] == [TrialEnded, SweepEnded]
    assert ours.outcomes == [Cancelled(cause=Stopped(by="Ctrl-C"))]
    assert ours.state.running == ()
    assert stored_end(ours.spec, "demo") == ours.state.ended
    again = sweep(trials=trials)
    assert again.study.interrupted() == ()
    assert again.ask().request.plan == run.request.plan


def test_a_signal_while_a_trial_starts_closes_it(sweep: Make) -> None:
    ours = sweep(callbacks=(Interrupted(TrialStarted),))
    with pytest.raises(KeyboardInterrupt):
        ours.controller.tick()
    ours.stop("Ctrl-C")

    assert ours.recorder.kinds == [SweepStarted, TrialStarted, TrialEnded, SweepEnded]
    assert ours.cluster.runs == []
    assert sweep().study.interrupted() == ()


def test_what_a_dead_driver_left_goes_first_once(sweep: Make) -> None:
    dead = sweep(trials=9)
    dead.report(dead.ask(), make_measured())
    lost = dead.ask().request

    again = sweep(trials=9)
    retried = again.ask()
    assert retried.request.plan == lost.plan
    reason = Retry(trial=lost.number, cause=DriverDied())
    assert again.state.running[0].reason == reason
    again.report(retried, make_measured())
    assert lost.plan not in again.run()


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


def test_a_plan_that_the_space_dropped_is_not_retried(tmp_path: Path) -> None:
    study = {"folder": str(tmp_path), "sampler": "random"}
    nodes = PlayedCluster(make_nodes(*"abcdefgh"))
    wide = Sweep(make_spec(study=study, space={"micro_batch": [1, 8]}), nodes, groups=8)
    wide.report(wide.ask(), make_measured())
    # the driver dies with all of these open
    assert {trial.plan.micro_batch for trial in wide.state.running} == {1, 8}

    narrow = Sweep(make_spec(study=study, space={"micro_batch": [1]}, budget={"trials": 4}))
    assert {plan.micro_batch for plan in narrow.run()} == {1}


@dataclass
class Slow(AbstractForecasts):
    """Returns no forecasts, slowly."""

    seconds: float
    clock: Clock | None = None

    def prior(self, state: SweepState) -> SearchPrior | None:
        if self.clock is not None:
            self.clock.now += self.seconds
        return None

    def expectation(self, plan: Plan, state: SweepState) -> PlanForecast | None:
        return None

    def problem(self) -> str | None:
        return None


def test_an_ask_is_timed_where_there_was_a_choice(sweep: Make) -> None:
    slow = Slow(0.75)
    ours = sweep(slow)
    slow.clock = ours.clock
    ours.run()

    asks = [event.ask_seconds for event in ours.events(TrialStarted)]
    assert asks == [None, 0.75, 0.75]  # the first plan is nobody's choice


def test_waiting_is_from_the_start_until_workers_are_ready(sweep: Make) -> None:
    """Two seconds until a runner takes it, five for its workers; unknown if the runner died."""
    ours = sweep()
    run = ours.ask()
    ours.report(run, make_measured(), started_at=ours.clock.now + 2, workers_seconds=5.0)
    ours.lose(ours.ask())
    behind = ours.ask()
    # another host's clock may be behind ours
    ours.report(behind, make_measured(), started_at=ours.clock.now - 3, workers_seconds=1.0)

    ends = ours.events(TrialEnded)
    assert [end.waited_seconds for end in ends] == [7.0, None, 1.0]


def test_workers_are_given_no_address_that_may_hold_a_password(tmp_path: Path) -> None:
    """The request of a trial is stored in the memory of a cluster."""
    here = f"sqlite:///{tmp_path}/hunter2.db"
    spec = make_spec(study={"storage": here}, tracking={"uri": "http://ann:hunter2@mlflow"})
    ours = Sweep(spec)

    run = ours.ask()

    assert "hunter2" not in repr(run)
    assert run.request.spec.train == spec.train
    assert ours.state.spec == spec
