"""Table of all legal plans on a number of devices, with their forecasts as columns and terms."""

from dataclasses import dataclass

import numpy as np

from orchestrator.forecast.mixes import with_mixes
from orchestrator.forecast.request import (
    RECOMMENDED_FIT_PROBABILITY,
    PlanningRequest,
    TraceVariants,
)
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.forecast import Forecasts, forecast, plan_forecast
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.model_work import utilization
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.plan_features import Counts, Flags, Numbers
from search_spaces.costs.stages import STAGES
from search_spaces.costs.time import TERMS, step_terms
from search_spaces.costs.workload import Workload, workload_of
from search_spaces.errors import UserError
from search_spaces.knobs.registry import lossy_knobs
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.rules.registry import refusal
from search_spaces.space import Space, build_space, space_of_plans
from search_spaces.trial import Ceiling, PlanForecast

_DIGITS = 9  # forecasts that agree in these are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """A plan with its forecast, and with the parts that the forecast is made of.

    `seconds` splits an optimizer step into terms, and `held_bytes` the peak of the fullest rank
    into categories; both add up to their totals. `equivalent_plans` counts the plans with an equal
    forecast, itself included. `stage` is the fullest pipeline stage, None without a pipeline.
    """

    key: str
    plan: Plan
    world_size: int
    forecast: PlanForecast
    tokens_per_second_per_device: float
    mfu: float | None  # None if the work could not be counted, or the device lacks the precision
    ceiling: Ceiling | None
    paper_mfu: float | None
    keeps_headroom: bool  # True if it can be recommended: see `ForecastTable`
    stage: str | None
    seconds: tuple[tuple[str, float], ...]
    held_bytes: tuple[tuple[str, float], ...]
    recomputed: float
    hidden_seconds: float
    equivalent_plans: int
    lossy: tuple[str, ...]  # names of the knobs that change the numerics


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastTable:
    """The legal plans of a request on `ranks` devices, with their forecasts.

    `ruled_out` and `objections` are those of `Space`. `hosted` marks plans whose offload
    fits into host memory. `fits_device` marks those with an expected peak within usable memory, and
    within the limit with a probability of `RECOMMENDED_FIT_PROBABILITY`.
    """

    request: PlanningRequest
    ranks: int
    table: PlanTable
    footprint: Footprint
    work: Workload
    forecasts: Forecasts
    ruled_out: tuple[tuple[str, int], ...]
    objections: tuple[tuple[str, str], ...]
    hosted: Flags
    fits_device: Flags

    @property
    def keeps_headroom(self) -> Flags:
        """Plans that can be recommended: hosted, and fit the device."""
        return self.hosted & self.fits_device

    def row(self, row: int) -> ForecastRow:
        """Returns the plan in a row with its forecast."""
        forecasts, plan = self.forecasts, self.table.plan(row)
        speed = float(forecasts.tokens_per_second_per_device[row])
        model, device = self.request.model, self.request.device
        used = utilization(self.footprint.work, model, device, plan.precision, speed)
        return ForecastRow(
            key=plan.key,
            plan=plan,
            world_size=plan.world_size,
            forecast=plan_forecast(self.work, row, forecasts),
            tokens_per_second_per_device=speed,
            mfu=used.mfu,
            ceiling=used.ceiling,
            paper_mfu=used.paper_mfu,
            keeps_headroom=bool(self.keeps_headroom[row]),
            stage=STAGES[int(forecasts.stage[row])] if plan.pipeline > 1 else None,
            seconds=tuple(zip(TERMS, forecasts.terms[row].tolist(), strict=True)),
            held_bytes=tuple(zip(CATEGORIES, forecasts.categories[row].tolist(), strict=True)),
            recomputed=float(forecasts.recomputed[row]),
            hidden_seconds=float(forecasts.hidden_seconds[row]),
            equivalent_plans=len(equal_rows(forecasts, row)),
            lossy=lossy_knobs(plan, self.request.spec),
        )


def forecast_table(
    request: PlanningRequest, ranks: int, trace: TraceVariants, calibration: Calibration
) -> ForecastTable:
    """Enumerates and forecasts the legal plans on a number of devices.

    Raises:
        SpecError: If no plan is legal.
        UserError: If the model cannot be traced.
    """
    context = request.rule_context(ranks)
    space = build_space(context, ranks)
    space = with_mixes(space, context, trace, request.device, calibration, request.limit_bytes)
    return _table_of(request, ranks, space, trace, calibration)


def single_plan_table(
    request: PlanningRequest, plan: Plan, trace: TraceVariants, calibration: Calibration
) -> ForecastTable:
    """Forecasts one plan, on the devices that it needs, as a table of one row.

    Raises:
        UserError: If a rule refuses it, or the model cannot be traced.
    """
    if violation := refusal(plan, request.rule_context(plan.world_size)):
        raise UserError(f"the plan is not legal here: {violation.detail} ({violation.rule})")
    space = space_of_plans([plan], request.spec)
    return _table_of(request, plan.world_size, space, trace, calibration)


def _table_of(
    request: PlanningRequest,
    ranks: int,
    space: Space,
    trace: TraceVariants,
    calibration: Calibration,
) -> ForecastTable:
    table = space.table
    footprint = trace(variants_of(table))
    work = workload_of(footprint, request.device, plan_features(table, request.model, footprint))
    forecasts = forecast(work, calibration, float(request.limit_bytes))
    return ForecastTable(
        request=request,
        ranks=ranks,
        table=table,
        footprint=footprint,
        work=work,
        forecasts=forecasts,
        ruled_out=space.ruled_out,
        objections=space.objections,
        hosted=forecasts.host_share <= 1,
        fits_device=(forecasts.peak_bytes <= request.line_bytes)
        & (forecasts.fits >= RECOMMENDED_FIT_PROBABILITY),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of a step, in seconds, or one category of the peak, in bytes.

    `amount` is the forecast, `scale` the correction by measurements that it includes (1: none).
    """

    name: str
    amount: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A plan's forecast, split into terms; `provenance` names the source of the coefficients."""

    expected: ForecastRow
    time: tuple[Term, ...]
    memory: tuple[Term, ...]
    provenance: str


def breakdown(table: ForecastTable, calibration: Calibration) -> Breakdown:
    """Breaks down the forecast of the only plan in a table."""
    forecasts = table.forecasts
    uncorrected = step_terms(table.work, calibration.time).seconds[0]
    memory_scales = np.exp(calibration.memory_scales.logarithms)
    return Breakdown(
        expected=table.row(0),
        time=tuple(
            Term(name=name, amount=float(amount), scale=float(amount / before) if before > 0 else 1)
            for name, amount, before in zip(TERMS, forecasts.terms[0], uncorrected, strict=True)
        ),
        memory=tuple(
            Term(
                name=name, amount=float(forecasts.categories[0, at]), scale=float(memory_scales[at])
            )
            for at, name in enumerate(CATEGORIES)
        ),
        provenance=calibration.provenance,
    )


def fastest(forecasts: Forecasts, among: Flags) -> Counts:
    """Returns rows ordered by speed, then by peak, with one row for equal forecasts.

    Plans that differ only in knobs without an effect on forecasts have equal speed and peak; the
    first of them represents all.
    """
    rows = np.flatnonzero(among)
    speed, peak = forecasts.samples_per_second[rows], forecasts.peak_bytes[rows]
    ordered = rows[np.lexsort((rows, peak, -speed))]
    if not len(ordered):
        return ordered
    repeated = _repeated(forecasts.samples_per_second[ordered])
    repeated &= _repeated(forecasts.peak_bytes[ordered])
    return ordered[~repeated]


def equal_rows(forecasts: Forecasts, row: int) -> Counts:
    """Returns the rows with the same forecast as `row`, itself included."""
    tolerance = 10.0**-_DIGITS
    equal = np.isclose(
        forecasts.samples_per_second, forecasts.samples_per_second[row], rtol=tolerance, atol=0
    ) & np.isclose(forecasts.peak_bytes, forecasts.peak_bytes[row], rtol=tolerance, atol=0)
    return np.flatnonzero(equal)


def _repeated(values: Numbers) -> Flags:
    previous = np.concatenate([[np.nan], values[:-1]])
    return np.isclose(values, previous, rtol=10.0**-_DIGITS, atol=0)
