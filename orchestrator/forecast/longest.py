"""Plans and sweeps for the longest sequence that fits, one length after another."""

import time
from collections.abc import Callable
from dataclasses import replace

from orchestrator.core.lengths import at_length, next_length
from orchestrator.core.state import SweepState
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.planner import LengthResult, Planner, PlanningReport
from orchestrator.forecast.request import device_of, planning_request
from search_spaces.costs.calibration import Calibration, shipped_calibration
from search_spaces.errors import ModelError, SpecError, UserError
from search_spaces.hardware.device import Device
from search_spaces.specification.load import with_budget
from search_spaces.specification.schema import SweepSpec
from workers.prepare import prepare_driver

Sweep = Callable[[SweepSpec, str], SweepState]
_PROBE_TRIALS = 5  # by which a length is shown to fit
_GROWTH = 1.25  # of lengths around the one that is forecast
_LEAST_MINUTES = 0.1


def planner_of(
    spec: SweepSpec,
    device: Device,
    calibration: Calibration,
    *,
    ranks: tuple[int, ...] = (),
    price_per_hour: float | None = None,
    top: int = 10,
) -> Planner:
    """Makes the planner of a specification; for arguments see `planning_request`.

    Raises:
        UserError: If the model or the data cannot be used.
    """
    model, data = prepare_driver(spec)
    request = planning_request(
        spec, model, device, ranks=ranks, price_per_hour=price_per_hour, top=top, data=data
    )
    return Planner(request, Footprints(spec, request.kind, run_code=True), calibration)


def plan_longest(
    spec: SweepSpec,
    planner_of: Callable[[SweepSpec], Planner],
    on_length: Callable[[LengthResult], None] | None = None,
) -> tuple[Planner, PlanningReport]:
    """Plans the longest sequence that fits; if none does, the shortest that was tried.

    Args:
        spec: The specification; `train.sequence_length` is tried first.
        planner_of: Makes the planner of a specification.
        on_length: Called with each result, unless None.

    Returns:
        The planner of that length, and its report, with all results in `lengths`.

    Raises:
        UserError: If samples do not grow with the sequence length, or as `Planner.plan` for the
            first length.
    """
    began = time.perf_counter()
    planned: dict[int, tuple[Planner, PlanningReport]] = {}
    results: dict[int, LengthResult] = {}

    def fits() -> dict[int, bool]:
        return {tokens: result.best is not None for tokens, result in results.items()}

    while (tokens := next_length(fits(), spec.train.sequence_length)) is not None:
        try:
            planner = planner_of(at_length(spec, tokens))
            report = planner.plan()
        except (ModelError, SpecError) as error:  # such as too few learned positions
            if not planned:
                raise
            results[tokens] = LengthResult(tokens=tokens, refusal=_advice(error))
        else:
            if report.tokens != tokens:
                raise UserError(
                    f"the longest sequence: a sample of {spec.model.name} has {report.tokens:,}"
                    f" tokens if train.sequence_length is {tokens:,}; it must grow with it"
                )
            planned[tokens] = planner, report
            results[tokens] = LengthResult(tokens=tokens, best=report.best)
        if on_length is not None:
            on_length(results[tokens])
    fitting = [tokens for tokens, fit in fits().items() if fit]
    planner, report = planned[max(fitting) if fitting else min(planned)]
    lengths = tuple(results[tokens] for tokens in sorted(results))
    return planner, replace(report, lengths=lengths, seconds=time.perf_counter() - began)


def _advice(error: UserError) -> str:
    if isinstance(error, SpecError):
        return "; ".join(fault.advice for fault in error.faults)
    return str(error)


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
    fits: dict[int, bool] = {}
    states: dict[int, SweepState] = {}
    first, growth = _first_length(spec, say)
    ends_at = time.monotonic() + 60 * spec.budget.minutes  # the forecast does not count

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
