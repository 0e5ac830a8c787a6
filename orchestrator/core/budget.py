"""What to do next in a sweep: a decision with its reason, from state and time alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.failures import reason_to_stop
from orchestrator.core.objective import measured, record_of, trials_since_best
from orchestrator.core.state import SweepState
from search_spaces.plan import Plan
from search_spaces.trial import Cancelled, Costs, Estimate, Measured, PlanForecast, Record

_LEAST_MEASURED = 3  # plans, before what a search expects of the others is held against cost
LAST_TRIAL_SECONDS = 30.0  # a trial that starts in the last moment still gets a chance
# What no forecast knows of: libraries that load with a first step, a busy machine
FLOOR_SECONDS = 60.0
# An honest trial may take so many times the upper end of its forecast, or the longest build seen
SLACK = 4.0
# Steps outside of `objective.max_seconds`: the worst step, and the last two, which a measurement
# may begin however slow they are
_STEPS_BESIDE = 3
# The same in a validation: four steps and an evaluation of the longest samples, and the last two
_STEPS_BESIDE_VALIDATION = 7
_SLOW_DISK = 50e6  # bytes per second that all ranks together write of a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Run a trial: this plan, or whichever the sampler proposes if it is None."""

    plan: Plan | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Hand out no more trials."""

    reason: str


def next_action(state: SweepState, now: float, untried: int) -> Try | Stop:
    """Whether to go on, and with what.

    The first plan of a study is the one that a user would start with: the speed-up is told
    against it. Trials of earlier drivers count towards the budget of trials, their time does not.

    Args:
        state: The sweep so far.
        now: Seconds since the epoch.
        untried: Legal plans of which no trial has ended or is under way.
    """
    budget = state.spec.budget
    if _counted(state) + len(state.running) >= budget.trials:
        return Stop(reason=f"the budget of {budget.trials} trials is used")
    if now - state.started_at >= budget.minutes * 60:
        return Stop(reason=f"the budget of {budget.minutes:g} minutes is used")
    if budget.gpu_hours is not None and rank_hours(state.records) >= budget.gpu_hours:
        return Stop(reason=f"the budget of {budget.gpu_hours:g} GPU-hours is used")
    if reason := reason_to_stop(state.records):
        return Stop(reason=reason)
    if untried == 0:
        return Stop(reason=f"all {len(state.space.candidates)} plans have been tried")
    if budget.patience is not None and state.best is not None:
        waited = trials_since_best(state.records, state.goal)
        if waited >= budget.patience:
            return Stop(reason=f"the last {waited} trials gave no better plan")
    if not _tried(state, state.space.baseline):
        return Try(plan=state.space.baseline, why="the plan that one would start with")
    return Try(plan=None, why=f"proposed by {state.spec.study.sampler}")


def not_worth_it(state: SweepState, saving: float | None, seconds: float | None) -> Stop | None:
    """Whether the best next trial takes longer than knowing its outcome is expected to save.

    Args:
        state: The sweep so far.
        saving: Share of a training's time that the trial is expected to save; None: unknown.
        seconds: What the trial takes; None: unknown.
    """
    hours = state.spec.budget.training_hours
    if hours is None or saving is None or seconds is None:
        return None
    if sum(measured(record) for record in state.records) < _LEAST_MEASURED:
        return None
    saved = saving * hours * 3600
    if saved >= seconds:
        return None
    return Stop(
        reason=f"the best next trial takes {seconds:.0f} s and is expected to save {saved:.1f} s of"
        f" a training of {hours:g} h"
    )


def incumbent(state: SweepState, plan: Plan) -> Estimate | None:
    """Seconds of a step that a trial of a plan has to beat; None: there is none.

    Where the price counts, fewer or cheaper ranks may take longer in proportion.
    """
    best, asked = state.best, state.spec.objective
    if best is None or not asked.racing or not isinstance(best.outcome, Measured):
        return None
    if asked.metric == "headroom":
        return None
    may, step = 1.0, best.outcome.step_seconds
    if asked.metric == "samples_per_price":
        each, of_best = map(state.goal.seconds_per_price, (plan, best.plan))
        may = each / of_best if each and of_best else may
    return Estimate(value=step.value * may, low=step.low * may, high=step.high * may)


def rank_hours(records: Iterable[Record]) -> float:
    """Hours that the ranks of all trials took together."""
    return sum(r.plan.world_size * (r.ended_at - r.started_at) for r in records) / 3600


def _counted(state: SweepState) -> int:
    """Trials that have an outcome; one that was cut short is run again."""
    return sum(not isinstance(record.outcome, Cancelled) for record in state.records)


def _tried(state: SweepState, plan: Plan) -> bool:
    running = any(trial.plan == plan for trial in state.running)
    return running or record_of(state.records, plan) is not None


def trial_deadline_seconds(
    state: SweepState, now: float, plan: Plan | None = None, forecast: PlanForecast | None = None
) -> float:
    """Hard limit of the next trial.

    At most the specification's, or what is left of the sweep if that is less. With a forecast,
    and once a trial of the study has told what building takes, no more than `SLACK` times what
    the plan is expected to need beside `objective.max_seconds` of measured steps, and
    `FLOOR_SECONDS`: a trial that hangs is then ended in minutes, while one that is merely slow
    is not.

    Args:
        state: The sweep so far.
        now: Seconds since the epoch.
        plan: What is to be run.
        forecast: What is expected of it, None if nothing is.
    """
    budget = state.spec.budget
    left = state.started_at + budget.minutes * 60 - now
    cap = min(budget.trial_seconds, max(left, LAST_TRIAL_SECONDS))
    if plan is None or forecast is None:
        return cap
    preparing = _preparing_seconds(state, plan)
    if preparing is None:
        return cap
    steps = _STEPS_BESIDE * forecast.step_seconds.high / forecast.filled
    needed = SLACK * (steps + preparing) + state.spec.objective.max_seconds
    return min(cap, FLOOR_SECONDS + needed)


def validation_deadline_seconds(state: SweepState, trial: Record) -> float:
    """Hard limit of a validation, whatever is left of the sweep's own time.

    At most so many times a trial's as a validation is longer; less if its trial tells that it needs
    less, with `SLACK`, and time for a slow disk to take the checkpoint.

    Args:
        state: The sweep so far.
        trial: The measured trial of the plan.
    """
    spec, outcome = state.spec, trial.outcome
    assert isinstance(outcome, Measured)
    costs, held = outcome.costs, outcome.memory.anatomy
    # an evaluation compiles once more
    preparing = costs.build_seconds + 2 * costs.compile_seconds
    steps = _STEPS_BESIDE_VALIDATION * outcome.step_seconds.high
    saving = trial.plan.world_size * (held.weights + held.optimizer_states) / _SLOW_DISK
    measuring = spec.validation.longer * spec.objective.max_seconds
    needed = FLOOR_SECONDS + SLACK * (preparing + steps) + measuring + saving
    return min(spec.validation.longer * spec.budget.trial_seconds, needed)


def _preparing_seconds(state: SweepState, plan: Plan) -> float | None:
    """The longest that trials like this one took to build, and to compile if it compiles.

    None where there was none of its engine, or none that compiled: nobody knows.
    """
    seen = tuple(_costs(state, plan.engine, plan.compile))
    if not seen:
        return None
    compiling = max(costs.compile_seconds for costs in seen) if plan.compile else 0.0
    return max(costs.build_seconds for costs in seen) + compiling


def _costs(state: SweepState, engine: str, compiles: bool) -> Iterable[Costs]:
    for record in state.records:
        alike = record.plan.engine == engine and record.plan.compile >= compiles
        if alike and isinstance(record.outcome, Measured):
            yield record.outcome.costs
