"""The next step of a sweep: a decision with its reason, derived from state and time alone."""

from collections.abc import Iterable

from orchestrator.core.failures import same_failure
from orchestrator.core.objective import best, is_measured, record_of
from orchestrator.core.reasons import AllTried, BudgetSpent, NoImprovement, NotWorthIt, StopReason
from orchestrator.core.records import Record
from orchestrator.core.repeats import is_repeat
from orchestrator.core.state import SweepState
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import SPEED_METRICS
from search_spaces.trial import Cancelled, Estimate, Measured, PlanForecast

_MIN_MEASURED = 3  # plans to measure before the expected savings of the next trial are trusted
LAST_TRIAL_SECONDS = 30.0  # a trial that starts in the last moment still gets a chance
# No forecast covers libraries that load during the first step, or a busy machine
DEADLINE_FLOOR_SECONDS = 60.0
# A trial that does not hang may take this multiple of the upper end of its forecast, or of the
# longest build so far
DEADLINE_SLACK = 4.0
# Steps outside of `objective.max_seconds`: the worst step, and the last two, which a measurement
# may begin however slow they are
_UNCAPPED_STEPS = 3
# The same for a validation: four steps and an evaluation of the longest samples, and the last two
_UNCAPPED_VALIDATION_STEPS = 7
_SLOW_DISK_BYTES_PER_SECOND = 50e6  # at which all ranks together write a checkpoint
# Workers on another machine compile DeepSpeed's operators as they start, once
_COMPILE_SECONDS = 1200.0


def reason_to_end(state: SweepState, now: float) -> StopReason | None:
    """Returns the reason to end the search; None if another trial follows.

    Trials of earlier drivers count towards the budget of trials; their time does not. `now` is in
    seconds since the epoch.
    """
    budget = state.spec.budget
    running = sum(not trial.is_repeat for trial in state.running)
    if completed_trials(state) + running >= budget.trials:
        return BudgetSpent(limit="trials", amount=budget.trials)
    if now - state.budget_began_at >= budget.minutes * 60:
        return BudgetSpent(limit="minutes", amount=budget.minutes)
    if budget.gpu_hours is not None and rank_hours(state.records) >= budget.gpu_hours:
        return BudgetSpent(limit="gpu_hours", amount=budget.gpu_hours)
    if failure := same_failure(state.records):
        return failure
    if not state.untried_count:
        return AllTried(plans=len(state.space.candidates))
    if budget.patience is not None and state.best is not None:
        trials = [record for record in state.records if not is_repeat(record)]
        top = best(trials, state.objective)
        waited = sum(top is None or trial.ended_at > top.ended_at for trial in trials)
        if waited >= budget.patience:
            return NoImprovement(trials=waited)
    return None


def baseline_is_due(state: SweepState) -> bool:
    """Returns True if the baseline, which speed-ups are relative to, has no trial yet."""
    baseline = state.space.baseline
    is_running = any(trial.plan == baseline for trial in state.running)
    return not is_running and record_of(state.records, baseline) is None


def not_worth_it(
    state: SweepState, saving: float | None, seconds: float | None
) -> NotWorthIt | None:
    """Returns the reason to end a search whose best next trial takes longer than it may save.

    Args:
        state: The sweep so far.
        saving: Share of a training run's time that the trial is expected to save; None: unknown.
        seconds: Expected duration of the trial; None: unknown.
    """
    hours = state.spec.budget.training_hours
    if hours is None or saving is None or seconds is None:
        return None
    if sum(is_measured(record) for record in state.records) < _MIN_MEASURED:
        return None
    saved = saving * hours * 3600
    if saved >= seconds:
        return None
    return NotWorthIt(trial_seconds=seconds, saved_seconds=saved, training_hours=hours)


def incumbent(state: SweepState, plan: Plan) -> Estimate | None:
    """Returns the seconds per step that a trial of a plan has to beat; None if there are none.

    When the objective is samples per price, fewer or cheaper ranks may take longer in proportion.
    """
    top, objective = state.best, state.spec.objective
    if top is None or not objective.racing or not isinstance(top.outcome, Measured):
        return None
    if objective.metric not in SPEED_METRICS:
        return None
    factor, step = 1.0, top.outcome.step_seconds
    if objective.metric == "samples_per_price":
        plan_seconds, best_seconds = map(state.objective.seconds_per_price, (plan, top.plan))
        factor = plan_seconds / best_seconds if plan_seconds and best_seconds else factor
    return Estimate(value=step.value * factor, low=step.low * factor, high=step.high * factor)


def rank_hours(records: Iterable[Record]) -> float:
    """Returns the hours that the ranks of all trials took together."""
    return sum(r.plan.world_size * (r.ended_at - r.started_at) for r in records) / 3600


def completed_trials(state: SweepState) -> int:
    """Returns the number of trials that count towards the budget."""
    return sum(
        not isinstance(record.outcome, Cancelled) and not is_repeat(record)
        for record in state.records
    )


def trial_deadline_seconds(
    state: SweepState, now: float, plan: Plan | None = None, forecast: PlanForecast | None = None
) -> float:
    """Returns the hard limit of the next trial, in seconds.

    It is at most `budget.trial_seconds`, or the time until the sweep ends if that is less. Given a
    forecast and a measured build time, it is also at most `DEADLINE_FLOOR_SECONDS`, the measured
    steps (`objective.max_seconds`), and `DEADLINE_SLACK` times everything else that the plan is
    expected to need. So a trial that hangs is ended within minutes, and one that is merely slow is
    not.

    Args:
        state: The sweep so far.
        now: Seconds since the epoch.
        plan: The plan to run.
        forecast: Its forecast, None without one.
    """
    budget = state.spec.budget
    remaining = state.budget_began_at + budget.minutes * 60 - now
    cap = min(budget.trial_seconds, max(remaining, LAST_TRIAL_SECONDS))
    if plan is None or forecast is None:
        return cap
    setup = _setup_seconds(state, plan)
    if setup is None:
        return cap
    steps = _UNCAPPED_STEPS * forecast.step_seconds.high / forecast.filled
    needed = DEADLINE_SLACK * (steps + setup) + state.spec.objective.max_seconds
    return min(cap, DEADLINE_FLOOR_SECONDS + needed)


def start_deadline_seconds(spec: SweepSpec) -> float:
    """Returns how long workers may take to start, in seconds."""
    compiling = _COMPILE_SECONDS if "deepspeed" in spec.named("engine") else 0.0
    return 60 * spec.cluster.start_minutes + compiling


def repeat_deadline_seconds(state: SweepState, plan: Plan) -> float:
    """Returns the hard limit of a repeat in seconds, however little time the sweep has left.

    It is `budget.trial_seconds`, or less if the measured trial of the plan shows that less will do.
    """
    outcome = next(
        one.outcome
        for one in state.records
        if one.plan == plan and isinstance(one.outcome, Measured)
    )
    setup = outcome.costs.build_seconds + outcome.costs.compile_seconds
    steps = _UNCAPPED_STEPS * outcome.step_seconds.high
    needed = DEADLINE_SLACK * (setup + steps) + state.spec.objective.max_seconds
    return min(state.spec.budget.trial_seconds, DEADLINE_FLOOR_SECONDS + needed)


def validation_deadline_seconds(state: SweepState, trial: Record) -> float:
    """Returns the hard limit of a validation in seconds, however little time the sweep has left.

    It is at most `budget.trial_seconds` times `validation.longer`. It is less if the measurements
    of the trial show that less will do, with `DEADLINE_SLACK` and time for a slow disk to take the
    checkpoint.
    """
    spec, outcome = state.spec, trial.outcome
    assert isinstance(outcome, Measured)
    costs, anatomy = outcome.costs, outcome.memory.anatomy
    # an evaluation compiles once more
    setup = costs.build_seconds + 2 * costs.compile_seconds
    steps = _UNCAPPED_VALIDATION_STEPS * outcome.step_seconds.high
    checkpoint_bytes = trial.plan.world_size * (anatomy.weights + anatomy.optimizer_states)
    saving = checkpoint_bytes / _SLOW_DISK_BYTES_PER_SECOND
    measuring = spec.validation.longer * spec.objective.max_seconds
    needed = DEADLINE_FLOOR_SECONDS + DEADLINE_SLACK * (setup + steps) + measuring + saving
    return min(spec.validation.longer * spec.budget.trial_seconds, needed)


def _setup_seconds(state: SweepState, plan: Plan) -> float | None:
    # similar: of the same engine, and compiled in the same mode if the plan is
    compilation = (plan.compile, plan.compile_mode)
    similar = [
        record.outcome.costs
        for record in state.records
        if isinstance(record.outcome, Measured)
        and record.plan.engine == plan.engine
        and (not plan.compile or (record.plan.compile, record.plan.compile_mode) == compilation)
    ]
    if not similar:
        return None
    compiling = max(costs.compile_seconds for costs in similar) if plan.compile else 0.0
    return max(costs.build_seconds for costs in similar) + compiling
