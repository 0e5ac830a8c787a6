"""Sweeps for `objective.metric: sequence_length`: one study for each length that is tried."""

import time
from collections.abc import Callable

from orchestrator.core.lengths import next_length
from orchestrator.core.state import SweepState
from orchestrator.forecast.longest import at_length, plan_longest, planner_of
from orchestrator.forecast.request import device_of
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.errors import ModelError, SpecError, UserError
from search_spaces.specification.load import with_budget
from search_spaces.specification.schema import SweepSpec

Sweep = Callable[[SweepSpec, str], SweepState]
_PROBE_TRIALS = 5  # by which a length is shown to fit
_GROWTH = 1.25  # of lengths around the one that is forecast
_LEAST_MINUTES = 0.1


def tune_longest(
    spec: SweepSpec, name: str, sweep: Sweep, say: Callable[[str], None]
) -> SweepState:
    """Finds the longest sequence that fits by sweeps of a few trials, and tunes it.

    The first length is the one that is forecast to be the longest, or `train.sequence_length` if
    the device is not known here. The study of a length is `NAME-TOKENS`; `budget.minutes` is of
    all of them together. After an interruption, a repeated call resumes.

    Args:
        spec: The specification.
        name: The name that studies begin with.
        sweep: Runs a sweep with this specification as this study.
        say: Shows a sentence of the progress.

    Returns:
        The state of the study of the longest length that fits; if none does, that of the shortest.

    Raises:
        UserError: As the sweep of the first length.
    """
    ends_at = time.monotonic() + 60 * spec.budget.minutes
    fits: dict[int, bool] = {}
    states: dict[int, SweepState] = {}
    first, growth = _first_length(spec, say)

    def run(tokens: int, trials: int, *, validation: bool | None) -> SweepState:
        minutes = max((ends_at - time.monotonic()) / 60, _LEAST_MINUTES)
        budget = with_budget(
            at_length(spec, tokens), trials=trials, minutes=minutes, validation=validation
        )
        return sweep(budget, f"{name}-{tokens}")

    while (tokens := next_length(fits, first, growth)) and time.monotonic() < ends_at:
        say(f"{tokens:,} tokens: measuring whether a plan fits")
        try:
            trials = min(_PROBE_TRIALS, spec.budget.trials)
            states[tokens] = run(tokens, trials, validation=False)
        except (ModelError, SpecError) as error:
            if not states:
                raise
            say(f"{tokens:,} tokens: {error}")
        fits[tokens] = tokens in states and states[tokens].best is not None
    fitting = [tokens for tokens, fit in fits.items() if fit]
    if not fitting:
        return states[min(states)]
    longest = max(fitting)
    say(f"{longest:,} tokens are the longest that fit, of {len(fits)} lengths; tuning them")
    return run(longest, spec.budget.trials, validation=None)


def _first_length(spec: SweepSpec, say: Callable[[str], None]) -> tuple[int, float]:
    """Returns the first length to measure, and the ratio of one to the next."""
    try:
        device = device_of(spec, name=None, devices_per_node=None)
        calibration = shipped_calibration().for_device(device)
        say("forecasting the longest sequence that fits")
        _, report = plan_longest(spec, lambda one: planner_of(one, device, calibration))
    except UserError:  # the sweep tells what is wrong
        return spec.train.sequence_length, 2.0
    if report.best is None:
        return spec.train.sequence_length, 2.0
    return report.tokens, _GROWTH
