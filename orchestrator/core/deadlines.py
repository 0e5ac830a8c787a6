"""How long a trial may take before it is ended: from its forecast, with a floor and a cap."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.state import SweepState
from search_spaces.expectation import Expectation
from search_spaces.outcome import Costs, Measured
from search_spaces.plan import Plan
from search_spaces.record import Record

LAST_TRIAL_SECONDS = 30.0  # a trial that starts in the last moment still gets a chance
# What no forecast knows of: libraries that load with a first step, a busy machine
FLOOR_SECONDS = 60.0
# An honest trial may take so many times the upper end of its forecast, or the longest build seen
SLACK = 4.0
# Steps outside of `objective.max_seconds`: the worst step, and the last two, which a measurement
# may begin however slow they are
_STEPS_BESIDE = 3
# The same in a proof: four steps and an evaluation of the longest samples, and the last two
_STEPS_BESIDE_PROOF = 7
_SLOW_DISK = 50e6  # bytes per second that all ranks together write of a checkpoint


def trial_deadline_seconds(
    state: SweepState, now: float, plan: Plan | None = None, forecast: Expectation | None = None
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


def proof_deadline_seconds(state: SweepState, trial: Record) -> float:
    """Hard limit of a proof, whatever is left of the sweep's own time.

    At most so many times a trial's as a proof is longer; less if its trial tells that it needs
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
    steps = _STEPS_BESIDE_PROOF * outcome.step_seconds.high
    saving = trial.plan.world_size * (held.weights + held.optimizer_states) / _SLOW_DISK
    measuring = spec.proof.longer * spec.objective.max_seconds
    needed = FLOOR_SECONDS + SLACK * (preparing + steps) + measuring + saving
    return min(spec.proof.longer * spec.budget.trial_seconds, needed)


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
