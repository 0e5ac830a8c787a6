"""Planner: answers a planning request with a report."""

import time
from dataclasses import dataclass

import numpy as np

from orchestrator.core.pareto import front_rows
from orchestrator.forecast.planning_notes import PlanningNote, planning_notes
from orchestrator.forecast.request import PlanningRequest, TraceVariants
from orchestrator.forecast.table import (
    Breakdown,
    ForecastRow,
    ForecastTable,
    breakdown,
    fastest,
    forecast_table,
    single_plan_table,
)
from search_spaces.costs.calibration import Calibration
from search_spaces.errors import SpecError
from search_spaces.facts import Understanding
from search_spaces.plan import Plan

MAX_POINTS = 2_000  # in the chart of all plans
_FRONT_STEP = 0.03  # least relative speed-up between listed plans of the Pareto front
_MOST_OF_FRONT = 10  # listed plans; beyond them, those that need the least memory are dropped
SURELY_NOT = 0.01  # P(fits) below which memory rules a plan out


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """Result for one device count.

    Of `plans` legal plans, `fitting` can be recommended, `unhosted` exceed host memory, and
    `cannot_fit` cannot fit the device; the others exceed the headroom line or come too close to the
    limit. If none can be recommended, `best` is empty and `nearest` is the plan with the smallest
    peak, or the one with the least host memory if that alone is lacking. `refusals` are the
    reasons why no plan is legal, empty if any is. `ruled_out` and `objections` are those of a
    `Space`. `price_per_billion_tokens` is that of the best plan, None without a price.
    """

    ranks: int
    plans: int = 0
    fitting: int = 0
    cannot_fit: int = 0
    unhosted: int = 0
    ruled_out: tuple[tuple[str, int], ...] = ()
    objections: tuple[tuple[str, str], ...] = ()
    best: tuple[ForecastRow, ...] = ()
    nearest: ForecastRow | None = None
    refusals: tuple[str, ...] = ()
    price_per_billion_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthResult:
    """Result for one sequence length: the best plan, None if none fits, or why there is none."""

    tokens: int
    best: ForecastRow | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningReport:
    """The answer to a planning request: forecasts for a model on a kind of device.

    `recommendation` is the result for the first count of the request, `device_counts` those for all
    counts, in order, `lengths` those for all sequence lengths that were tried, empty unless the
    longest was asked for. `front` is the Pareto front of speed and memory; `scatter_points` has
    (peak bytes, samples per second, P(fits)) of all plans or a sample.
    """

    understood: Understanding
    model: str
    architecture: str
    changed: bool  # the specification sets keys of its configuration
    parameters: int
    tokens: int  # per sample, of the longest one
    global_batch: int
    device: str
    device_memory_bytes: int
    node_devices: int
    limit_bytes: int
    line_bytes: float
    node_host_bytes: int
    price_per_hour: float | None
    recommendation: ScaleResult
    device_counts: tuple[ScaleResult, ...]
    front: tuple[ForecastRow, ...]
    scatter_points: tuple[tuple[float, float, float], ...]
    notes: tuple[PlanningNote, ...]
    forecast_plans: int
    seconds: float
    provenance: str
    lengths: tuple[LengthResult, ...] = ()

    @property
    def best(self) -> ForecastRow | None:
        """The recommended plan, None if nothing fits."""
        return self.recommendation.best[0] if self.recommendation.best else None


def memory_front(table: ForecastTable) -> tuple[ForecastRow, ...]:
    """Returns the Pareto front of speed and memory up to the limit, thinned for a table."""
    peaks, speeds = table.forecasts.peak_bytes, table.forecasts.samples_per_second
    within = np.flatnonzero(table.hosted & (peaks <= table.request.limit_bytes))
    listed: list[int] = []
    for row in within[front_rows(peaks[within], speeds[within])][::-1].tolist():  # fastest first
        if not listed or speeds[row] <= speeds[listed[-1]] / (1 + _FRONT_STEP):
            listed.append(row)
    return tuple(table.row(row) for row in listed[:_MOST_OF_FRONT][::-1])


def _nearest(table: ForecastTable) -> ForecastRow:
    forecasts = table.forecasts
    amounts, among = forecasts.peak_bytes, table.hosted | ~table.hosted.any()
    if table.fits_device.any():  # host memory alone is lacking
        amounts, among = forecasts.host_bytes, table.fits_device
    return table.row(int(np.argmin(np.where(among, amounts, np.inf))))


def scatter_points(table: ForecastTable) -> tuple[tuple[float, float, float], ...]:
    """Returns peak bytes, samples per second and P(fits) of all plans, or of a sample.

    The sample is evenly spaced in the order of speed and includes the Pareto front.
    """
    forecasts = table.forecasts
    rows = np.flatnonzero(table.hosted)
    rows = rows[np.argsort(-forecasts.samples_per_second[rows], kind="stable")]
    if len(rows) > MAX_POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_POINTS).astype(np.int64)]
        hosted = np.flatnonzero(table.hosted)
        peaks, speeds = forecasts.peak_bytes[hosted], forecasts.samples_per_second[hosted]
        rows = np.unique(np.concatenate([rows, hosted[front_rows(peaks, speeds)]]))
    columns = (forecasts.peak_bytes[rows], forecasts.samples_per_second[rows], forecasts.fits[rows])
    return tuple(
        zip(
            *(np.char.mod("%.5g", column).astype(float).tolist() for column in columns), strict=True
        )
    )


class Planner:
    """Answers one planning request, with one forecast of each device count."""

    def __init__(
        self, request: PlanningRequest, trace: TraceVariants, calibration: Calibration
    ) -> None:
        """Makes a planner for a request; `trace` traces footprints of its model."""
        self._request = request
        self._trace = trace
        self._calibration = calibration

    def plan(self, began: float | None = None) -> PlanningReport:
        """Makes the report.

        Args:
            began: The `perf_counter` to measure the report's duration from; now if None.

        Raises:
            UserError: If no plan is legal on the first count, or the model cannot be traced.
        """
        request = self._request
        began = time.perf_counter() if began is None else began
        ranks = request.ranks[0]
        table = forecast_table(request, ranks, self._trace, self._calibration)
        recommendation, footprint = _result_of(table), table.footprint
        results = tuple(
            recommendation if count == ranks else self._result(count)
            for count in sorted(request.ranks)
        )
        return PlanningReport(
            understood=Understanding(
                data=request.data,
                model=request.model,
                cluster=request.rule_context(ranks).cluster,
                ranks=ranks,
            ),
            model=request.model.name,
            architecture=request.model.architecture,
            changed=bool(request.spec.model.config),
            parameters=request.model.parameters,
            tokens=footprint.tokens,
            global_batch=request.spec.train.global_batch,
            device=request.device.name,
            device_memory_bytes=request.device.memory_bytes,
            node_devices=request.device.node_devices,
            limit_bytes=request.limit_bytes,
            line_bytes=request.line_bytes,
            node_host_bytes=request.device.node_host_bytes,
            price_per_hour=request.price_per_hour,
            recommendation=recommendation,
            device_counts=results,
            front=memory_front(table),
            scatter_points=scatter_points(table),
            notes=planning_notes(
                request,
                footprint.tokens,
                footprint.mean_tokens,
                recommendation.best[0] if recommendation.best else None,
                offloads=bool(table.forecasts.host_bytes.any()),
            ),
            forecast_plans=sum(result.plans for result in results),
            seconds=time.perf_counter() - began,
            provenance=self._calibration.provenance,
        )

    def explain(self, plan: Plan) -> Breakdown:
        """Breaks down the forecast of one plan, which may lie outside the space.

        Raises:
            UserError: If the plan is not legal here, or the model cannot be traced.
        """
        table = single_plan_table(self._request, plan, self._trace, self._calibration)
        return breakdown(table, self._calibration)

    def _result(self, ranks: int) -> ScaleResult:
        try:
            return _result_of(forecast_table(self._request, ranks, self._trace, self._calibration))
        except SpecError as error:
            return ScaleResult(ranks=ranks, refusals=tuple(fault.advice for fault in error.faults))


def _result_of(table: ForecastTable) -> ScaleResult:
    order = fastest(table.forecasts, table.keeps_headroom)[: table.request.top]
    best = tuple(table.row(int(row)) for row in order)
    return ScaleResult(
        ranks=table.ranks,
        plans=len(table.table),
        fitting=int(table.keeps_headroom.sum()),
        cannot_fit=int((table.hosted & (table.forecasts.fits < SURELY_NOT)).sum()),
        unhosted=int((~table.hosted).sum()),
        ruled_out=table.ruled_out,
        objections=table.objections,
        best=best,
        nearest=None if best else _nearest(table),
        price_per_billion_tokens=_token_price(table, best[0]) if best else None,
    )


def _token_price(table: ForecastTable, best: ForecastRow) -> float | None:
    if table.request.price_per_hour is None:
        return None
    tokens_per_hour = best.forecast.samples_per_second.value * table.footprint.mean_tokens * 3600
    return table.request.price_per_hour * best.world_size / tokens_per_hour * 1e9
