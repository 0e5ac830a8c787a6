"""The driver with scripted reports of runners, on a real study in SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.controller import Driver
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
from orchestrator.core.messages import Assignment, Later, TrialReport
from orchestrator.core.notes import ForecastsEnded, Message
from orchestrator.core.reasons import AllTried, BudgetSpent, IsBaseline, Retry, Sampled
from orchestrator.core.records import Record, closed_record
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.forecast.forecaster import AbstractForecasts, NoForecasts
from orchestrator.report.reasons import note_words
from orchestrator.study.reader import load_records
from orchestrator.study.study import Study
from search_spaces.costs.forecast import SearchPrior
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import (
    Cancelled,
    Crashed,
    DriverDied,
    Measured,
    Outcome,
    PlanForecast,
    Stopped,
    WorkersFailed,
)
from tests.orchestrator.records import BEGAN, make_space, make_spec
from tests.outcomes import (
    CPU_FINGERPRINT,
    LIMIT_BYTES,
    every_outcome,
    make_expectation,
    make_measured,
    make_oom,
)

CLUSTER = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=LIMIT_BYTES)


class Recorder(AbstractCallback):
    """Records all events."""

    def __init__(self) -> None:
        self.heard: list[tuple[Event, SweepState]] = []

    def on_event(self, event: Event, state: SweepState) -> None:
        self.heard.append((event, state))

    def close(self) -> None:
        pass

    @property
    def kinds(self) -> list[type[Event]]:
        return [type(event) for event, _ in self.heard]


@dataclass
class Clock:
    """A clock that only the test advances."""

    now: float = BEGAN

    def __call__(self) -> float:
        return self.now


@dataclass
class Sweep:
    """A driver with a recorder and a clock; a second one of the same spec resumes the sweep."""

    spec: SweepSpec
    clock: Clock = field(default_factory=Clock)
    forecasts: AbstractForecasts = field(default_factory=NoForecasts)

    def __post_init__(self) -> None:
        space = make_space(self.spec)
        study = Study(self.spec, "demo", space)
        begun = SweepStarted(
            study="demo",
            spec=self.spec,
            space=space,
            records=study.records(),
            memory_limit_bytes=LIMIT_BYTES,
            at=self.clock.now,
            validations=study.validations(),
        )
        self.ears = Recorder()
        self.driver = Driver(
            study, CLUSTER, [self.ears], begun, self.clock, forecasts=self.forecasts
        )
        self.driver.repair()

    def run(self, outcomes: Iterator[Outcome] | None = None) -> list[Plan]:
        """Runs trials of ten seconds each until the driver has no more."""
        plans = []
        while isinstance(given := self.driver.propose(), Assignment):
            outcome = make_measured() if outcomes is None else next(outcomes)
            self.report(given, outcome)
            plans.append(given.request.plan)
        return plans

    def report(self, given: Assignment, outcome: Outcome, **changes: object) -> None:
        self.clock.now += 10
        report = TrialReport(
            number=given.request.number,
            outcome=outcome,
            fingerprint=CPU_FINGERPRINT,
            notes=(),
            started_at=self.clock.now - 9,
            ended_at=self.clock.now - 1,
        )
        self.driver.conclude(replace(report, **changes))

    def ask(self) -> Assignment:
        given = self.driver.propose()
        assert isinstance(given, Assignment)
        return given


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., Sweep]:
    """Returns a function that makes drivers on one study."""

    def make(
        forecasts: AbstractForecasts | None = None, racing: bool = True, **budget: object
    ) -> Sweep:
        budget = {"trials": 3, "minutes": 10, "trial_seconds": 60, **budget}
        spec = make_spec(
            study={"folder": str(tmp_path), "sampler": "random"},
            objective={"racing": racing},
            budget=budget,
        )
        return Sweep(spec, forecasts=forecasts or NoForecasts())

    return make


Make = Callable[..., Sweep]


def test_a_sweep_in_order(sweep: Make) -> None:
    ours = sweep()
    plans = ours.run()

    trial = [TrialStarted, TrialEnded]
    assert ours.ears.kinds == [
        SweepStarted,
        TrialStarted,
        GroupStarted,  # as soon as it is known of
        TrialEnded,
        *trial,
        *trial,
        SweepEnded,
    ]
    assert plans[0] == ours.driver.state.space.baseline
    assert len(set(plans)) == 3
    ended = ours.driver.state.ended
    assert ended is not None
    assert ended.reason == BudgetSpent(limit="trials", amount=3)
    assert ours.driver.propose() is None
    assert ours.ears.kinds.count(SweepEnded) == 1


def test_each_event_comes_with_the_state_after_it(sweep: Make) -> None:
    ours = sweep()
    ours.run()

    counted = [len(state.records) for _, state in ours.ears.heard]
    assert counted == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert [len(state.running) for _, state in ours.ears.heard] == [0, 1, 1, 0, 1, 0, 1, 0, 0]
    assert ours.ears.heard[-1][1] == ours.driver.state


def test_records_are_what_was_reported(sweep: Make) -> None:
    """Cancelled trials do not count towards the budget."""
    ours = sweep(trials=10)
    *others, cancelled = every_outcome()
    assert isinstance(cancelled, Cancelled)
    outcomes = (*others[:9], cancelled, *others[9:])
    ours.run(iter(outcomes))

    records = ours.driver.state.records
    assert [record.outcome for record in records] == list(outcomes)
    assert records == load_records(ours.spec, "demo")
    assert [record.ended_at for record in records] == [BEGAN + 9 + 10 * n for n in range(11)]
    assert {record.fingerprint for record in records} == {CPU_FINGERPRINT}
    assert records[0].reason == IsBaseline()
    assert records[1].reason == Sampled(sampler="random")


def test_time_ends_a_sweep(sweep: Make) -> None:
    ours = sweep(trials=24, minutes=0.5)

    assert len(ours.run()) == 3
    ended = ours.driver.state.ended
    assert ended is not None
    assert ended.reason == BudgetSpent(limit="minutes", amount=0.5)


def test_what_is_handed_out_has_its_deadline(sweep: Make) -> None:
    ours = sweep(minutes=2, trial_seconds=90)
    first = ours.ask()
    ours.clock.now += 75
    ours.report(first, make_oom())
    second = ours.ask()

    assert (first.deadline_seconds, second.deadline_seconds) == (90.0, 35.0)
    told = [event for event, _ in ours.ears.heard if isinstance(event, TrialStarted)]
    assert [event.deadline_seconds for event in told] == [90.0, 35.0]
    assert (first.device, first.folder) == ("cpu", str(Path.cwd()))
    study = ours.spec.study.model_copy(update={"name": "demo"})  # which workers are told
    assert first.request.spec == ours.spec.model_copy(update={"study": study})
    assert first.request.snapshot == str(Path(study.folder, "demo", "snapshots", "trial-0"))


def test_notes_are_passed_on_after_the_trial(sweep: Make) -> None:
    ours = sweep(trials=1)
    ours.report(ours.ask(), make_oom(), notes=(Message(text="one"), Message(text="two")))

    assert ours.ears.kinds[-3:] == [TrialEnded, Noted, Noted]
    assert ours.driver.state.notes[0].note == Message(text="one")


def test_a_group_is_told_of_once_per_change(sweep: Make) -> None:
    ours = sweep(trials=5)
    other = replace(CPU_FINGERPRINT, hosts=2)
    for seen in (None, CPU_FINGERPRINT, CPU_FINGERPRINT, other, None):
        ours.report(ours.ask(), make_measured(), fingerprint=seen)

    groups = [event for event, _ in ours.ears.heard if isinstance(event, GroupStarted)]
    assert [group.fingerprint for group in groups] == [CPU_FINGERPRINT, other]
    assert {group.world_size for group in groups} == {2}


def test_a_lost_runner_is_a_crash_and_the_sweep_goes_on(sweep: Make) -> None:
    ours = sweep()
    lost = ours.ask()
    ours.driver.lose(lost.request.number)
    assert ours.driver.state.records[0].outcome == Cancelled(
        cause=WorkersFailed(outcome=RUNNER_DIED)
    )
    given = ours.ask()
    assert given.request.plan == lost.request.plan
    ours.driver.lose(given.request.number)

    record = ours.driver.state.records[-1]
    assert isinstance(record.outcome, Crashed)
    assert record.outcome.cause == "worker_died"
    assert record.plan == given.request.plan
    assert given.request.plan not in ours.run()


DEAD = Crashed(cause="worker_died", rank=1, phase="forward", detail="ActorDiedError: so")


def test_a_trial_whose_worker_died_is_run_once_more(sweep: Make) -> None:
    ours = sweep(trials=3)
    first = ours.ask()
    ours.report(first, DEAD, notes=(Message(text="so"),))
    second = ours.ask()
    assert second.request.plan == first.request.plan
    began = [event for event, _ in ours.ears.heard if isinstance(event, TrialStarted)][-1]
    assert began.retry_of == 0
    assert began.reason == Retry(trial=0, cause=WorkersFailed(outcome=DEAD))
    assert [note.note for note in ours.driver.state.notes] == [Message(text="so")]
    ours.report(second, make_measured())

    assert isinstance(ours.driver.state.records[-1].outcome, Measured)
    assert len(ours.run()) == 2  # what was cut short counts for nothing


def test_a_plan_under_which_workers_die_twice_is_to_blame(sweep: Make) -> None:
    ours = sweep()
    for _ in range(2):
        given = ours.ask()
        ours.report(given, DEAD)

    assert ours.driver.state.records[-1].outcome == DEAD
    assert given.request.plan not in ours.run()


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
        told, self._problem = self._problem, None
        return told


def rates(records: Sequence[Record]) -> list[float | None]:
    return [
        None if record.forecast is None else record.forecast.samples_per_second.value
        for record in records
    ]


def test_records_keep_what_was_expected_when_they_were_asked_for(sweep: Make) -> None:
    ours = sweep(forecasts=Scripted())
    ours.run(iter([make_measured(), make_oom(), make_measured()]))

    records = ours.driver.state.records
    assert rates(records) == pytest.approx([10.0, 20.0, 30.0])
    assert records == load_records(ours.spec, "demo")
    told = [event.forecast for event, _ in ours.ears.heard if isinstance(event, TrialStarted)]
    assert told == [record.forecast for record in records]


def test_a_forecast_may_come_while_its_trial_runs(sweep: Make) -> None:
    """The first trial starts while the model is still traced."""
    ours = sweep(forecasts=Scripted(silent=1))
    first = ours.ask()
    assert ours.driver.state.running[0].forecast is None
    ours.report(first, make_measured())

    assert rates(ours.driver.state.records) == [pytest.approx(10.0)]  # the trial taught nothing yet


def test_a_lost_runner_keeps_its_forecast(sweep: Make) -> None:
    ours = sweep(forecasts=Scripted())
    for _ in range(2):
        ours.driver.lose(ours.ask().request.number)

    assert rates(ours.driver.state.records)[1:] == [pytest.approx(20.0)]


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
    rivals = []
    for outcome in (make_measured(50.0, 0.99), make_measured(40.0), make_measured(45.0)):
        given = ours.ask()
        rivals.append(given.request.incumbent)
        ours.report(given, outcome)
    rivals.append(ours.ask().request.incumbent)

    best = [None, None, make_measured(40.0).step_seconds, make_measured(45.0).step_seconds]
    assert rivals == (best if racing else [None] * 4)


def test_why_there_are_no_forecasts_is_noted_once(sweep: Make) -> None:
    ours = sweep(forecasts=Scripted(silent=99, problem="so"))
    ours.run()

    note = ForecastsEnded(error="so")
    assert [noted.note for noted in ours.driver.state.notes] == [note]
    assert note_words(note) == "trials have no forecast: so"
    assert rates(ours.driver.state.records) == [None, None, None]


# ---------------------------------------------------------------- going on


def test_a_resumed_sweep_counts_and_never_measures_again(sweep: Make) -> None:
    before = sweep().run()
    again = sweep()
    assert again.run() == []
    assert again.ears.kinds == [SweepStarted, SweepEnded]

    longer = sweep(trials=6)
    after = longer.run()
    assert len(after) == 3
    assert not set(before) & set(after)
    assert longer.driver.state.resumed == 3


def test_a_space_that_is_used_up_ends_the_sweep(tmp_path: Path) -> None:
    only = {"micro_batch": [1, 2], "zero_stage": [0], "batching": ["padded"]}
    only |= {"attention": ["sdpa"], "checkpoint_ratio": [0.0]}
    ours = Sweep(make_spec(space=only, study={"folder": str(tmp_path)}))

    assert len(ours.run()) == 2
    ended = ours.driver.state.ended
    assert ended is not None
    assert ended.reason == AllTried(plans=2)


def test_several_trials_under_way_are_of_different_plans(sweep: Make) -> None:
    """They end in any order; none starts beyond the budget, and the sweep ends after all."""
    ours = sweep(trials=4)
    first, second, third = ours.ask(), ours.ask(), ours.ask()
    ours.report(second, make_measured())
    fourth = ours.ask()

    given = [first, second, third, fourth]
    assert len({one.request.plan for one in given}) == 4
    for one in (third, first, fourth):
        assert ours.driver.propose() == Later()
        assert SweepEnded not in ours.ears.kinds
        ours.report(one, make_measured())
    assert ours.driver.propose() is None
    assert [record.number for record in ours.driver.state.records] == [1, 2, 0, 3]
    assert ours.ears.kinds[-1] is SweepEnded


def test_cancel_closes_all_that_is_under_way(sweep: Make) -> None:
    ours = sweep(trials=4)
    given = [ours.ask(), ours.ask()]
    ours.driver.cancel(Stopped(by="Ctrl-C"))

    assert ours.driver.state.running == ()
    again = sweep(trials=4)
    assert {one.request.plan for one in given} <= {*again.driver._study.untried()}


def test_cancel_lets_the_next_driver_run_the_trial(sweep: Make) -> None:
    ours = sweep()
    ours.report(ours.ask(), make_measured())
    given = ours.ask()
    ours.driver.cancel(Stopped(by="Ctrl-C"))

    assert ours.ears.kinds[-2:] == [TrialEnded, SweepEnded]
    last = ours.driver.state.records[-1]
    assert last.outcome == Cancelled(cause=Stopped(by="Ctrl-C"))
    assert ours.driver.state.running == ()
    assert ours.driver.propose() is None

    again = sweep()
    assert len(again.driver.state.records) == 1  # what was cancelled is no measurement
    assert given.request.plan in again.driver._study.untried()
    assert len(again.run()) == 2


def test_cancel_just_after_the_study_was_told(sweep: Make) -> None:
    """Ctrl-C may come after a record is stored and before its event."""
    ours = sweep()
    given = ours.ask()
    record = closed_record(
        given.request.number, given.request.plan, make_oom(), IsBaseline(), at=1.0
    )
    ours.driver._study.tell(record)
    ours.driver.cancel(Stopped(by="Ctrl-C"))

    assert [record.outcome for record in sweep().driver.state.records] == [make_oom()]


def test_what_a_dead_driver_left_goes_first_once(sweep: Make) -> None:
    dead = sweep(trials=9)
    dead.report(dead.ask(), make_measured())
    lost = dead.ask().request

    again = sweep(trials=9)
    retried = again.ask()
    assert retried.request.plan == lost.plan
    reason = Retry(trial=lost.number, cause=DriverDied())
    assert again.driver.state.running[0].reason == reason
    again.report(retried, make_measured())
    assert lost.plan not in again.run()


def test_a_trial_that_kills_two_drivers_is_blamed(sweep: Make) -> None:
    lost = sweep().ask().request
    assert sweep().ask().request.plan == lost.plan  # and this driver dies too

    third = sweep()
    (record,) = third.driver.state.records
    assert isinstance(record.outcome, Crashed)
    assert record.outcome.cause == "driver_lost"
    assert record.plan == lost.plan
    assert TrialEnded in third.ears.kinds
    assert lost.plan not in third.run()
    assert record in sweep().driver.state.records  # blamed for good


def test_a_plan_that_the_space_dropped_is_not_retried(tmp_path: Path) -> None:
    study = {"folder": str(tmp_path), "sampler": "random"}
    wide = Sweep(make_spec(study=study, space={"micro_batch": [1, 8]}))
    wide.report(wide.ask(), make_measured())
    while wide.ask().request.plan.micro_batch != 8:
        pass  # the driver dies with all of these open

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

    asks = [event.ask_seconds for event, _ in ours.ears.heard if isinstance(event, TrialStarted)]
    assert asks == [None, 0.75, 0.75]  # the first plan is nobody's choice


def test_waiting_is_from_the_handing_out_until_workers_are_ready(sweep: Make) -> None:
    """Two seconds until a runner takes it, five for its workers; unknown if the runner died."""
    ours = sweep()
    given = ours.ask()
    handed = ours.clock.now
    ours.report(given, make_measured(), started_at=handed + 2, workers_seconds=5.0)
    ours.driver.lose(ours.ask().request.number)
    behind = ours.ask()
    # another host's clock may be behind ours
    ours.report(behind, make_measured(), started_at=ours.clock.now - 3, workers_seconds=1.0)

    ends = [event for event, _ in ours.ears.heard if isinstance(event, TrialEnded)]
    assert [end.waited_seconds for end in ends] == [7.0, None, 1.0]


def test_what_is_not_worth_it_on_nodes_that_are_free_may_be_on_others(tmp_path: Path) -> None:
    """A search ends only by the best proposal for all kinds of nodes."""
    spec = make_spec(
        study={"folder": str(tmp_path)},
        cluster={"workers": 2, "memory_gib": 0.5, "accelerators": ["A100", "H100"]},
        budget={"trials": 99, "training_hours": 1e-9},
        objective={"racing": False},
    )
    ours = Sweep(spec)
    for _ in range(3):
        ours.report(ours.ask(), make_measured())

    assert isinstance(ours.driver.propose(kinds={"A100"}), Later)
    assert ours.driver.state.ended is None
    assert ours.driver.propose() is None
    assert "training" in str(ours.driver.state.ended)


def test_workers_are_given_no_address_that_may_hold_a_password(tmp_path: Path) -> None:
    """The request of a trial is stored in the memory of a cluster."""
    here = f"sqlite:///{tmp_path}/hunter2.db"
    spec = make_spec(study={"storage": here}, tracking={"uri": "http://ann:hunter2@mlflow"})
    ours = Sweep(spec)

    given = ours.ask()

    assert "hunter2" not in repr(given)
    assert given.request.spec.train == spec.train
    assert ours.driver.state.spec == spec
