"""Plans of a specification, and of the longest sequence that fits."""

import time
from collections.abc import Callable
from dataclasses import replace

from orchestrator.core.lengths import next_length
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.planner import LengthResult, Planner, PlanningReport
from orchestrator.forecast.request import planning_request
from search_spaces.costs.calibration import Calibration
from search_spaces.errors import ModelError, SpecError, UserError
from search_spaces.hardware.device import Device
from search_spaces.specification.schema import DataSpec, SweepSpec
from workers.prepare import prepare_driver


def at_length(spec: SweepSpec, tokens: int) -> SweepSpec:
    """Returns the specification with samples of this many random tokens each."""
    train = spec.train.model_copy(update={"sequence_length": tokens})
    objective = spec.objective
    if objective.metric == "sequence_length":  # of one length, the fastest plan is the best
        objective = objective.model_copy(update={"metric": "samples_per_second"})
    return spec.model_copy(update={"train": train, "data": DataSpec(), "objective": objective})


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
