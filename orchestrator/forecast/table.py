"""All legal plans on so many devices, and what they are expected to take, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.forecast.request import SURE_TO_FIT, PlanningRequest, TraceVariants
from orchestrator.report.labels import lossy_words
from search_spaces.costs.calibration import SURE, Calibration, probability_below
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.forecast import Forecasts, forecast
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.plan_features import Counts, Flags, Numbers
from search_spaces.costs.workload import Work, work_of
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.rules.registry import refusal
from search_spaces.space import build_space
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Estimate

_GRADIENT_BYTES = 4.0  # on the host, gradients wait in fp32 for the optimizer there
_DIGITS = 9  # of two forecasts that are one and the same


def host_bytes(work: Work) -> Numbers:
    """What one rank holds of the host's memory: states, weights and block inputs moved there.

    Of a pipeline the fullest stage counts; what lies on NVMe does not, nor do loader processes.

    Source:
        Ren et al. 2021, arXiv:2101.06840, section 3: ZeRO-Offload keeps gradients and optimizer
        states in the host's memory; Rajbhandari et al. 2021, arXiv:2104.07857, for weights.
    """
    execution, rows = work.executions, work.rows
    trained, held, blocks = _fullest(work)
    mine = trained / np.where(execution.optimizer_sharded, execution.shards, 1)
    states = np.where(execution.on_nvme, 0.0, mine * execution.state_bytes)
    states = np.where(execution.optimizer_on_host, states + mine * _GRADIENT_BYTES, 0.0)
    slices = held / np.where(execution.weights_sharded, execution.shards, 1)
    weights = np.where(execution.weights_on_host, slices * execution.weight_bytes, 0.0)
    under_way = np.minimum(execution.pipeline, execution.accumulation)
    inputs = blocks * execution.recomputed * under_way * work.parts.block_input[rows.case]
    return states + weights + np.where(execution.activations_on_host, inputs, 0.0)


def _fullest(work: Work) -> tuple[Numbers, Numbers, Numbers]:
    """Trained and all parameters, and blocks, of the stage that holds most."""
    execution, rows = work.executions, work.rows
    alone = execution.pipeline == 1
    stages = []
    for embedding, blocks, head in (
        (1.0, execution.first_blocks, alone * 1.0),
        (0.0, execution.middle_blocks, 0.0 * rows.depth),
        (0.0, np.where(alone, 0.0, execution.last_blocks), 1.0 - alone),
    ):
        both = embedding * head * rows.tied
        trained = (
            embedding * rows.embedding_trained
            + blocks * rows.block_trained
            + head * rows.head_trained
            - both * (rows.head_trained > 0)
        )
        frozen = (
            embedding * rows.embedding_frozen + blocks * rows.block_frozen + head * rows.head_frozen
        )
        stages.append(np.stack([trained, trained + frozen, blocks * np.ones(len(work))]))
    found = np.stack(stages)  # stages, quantities, plans
    which = np.argmax(found[:, 1], axis=0)
    trained, held, blocks = found[which, :, np.arange(len(work))].T
    return trained, held, blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastTable:
    """The plans of a question on `ranks` devices.

    `ruled_out` counts the combinations that each rule forbids; `hosted` tells which plans find
    room for what they offload in their share of the host's memory, `keeps` which of those are
    expected to stay below the line, and fit the limit with a probability of `SURE_TO_FIT`.
    """

    spec: SweepSpec
    ranks: int
    limit_bytes: int
    line_bytes: float
    table: PlanTable
    footprint: Footprint
    work: Work
    forecasts: Forecasts
    ruled_out: tuple[tuple[str, int], ...]
    host_bytes: Numbers
    hosted: Flags
    keeps: Flags

    def plan(self, row: int) -> Plan:
        """The plan in a row."""
        return self.table.plan(int(row))


def forecast_table(
    question: PlanningRequest, ranks: int, trace: TraceVariants, belief: Calibration
) -> ForecastTable:
    """Enumerates the legal plans on so many devices and forecasts them all.

    Raises:
        SpecError: If no plan is legal.
        UserError: If the model cannot be traced.
    """
    space = build_space(question.around(ranks), ranks)
    return _sized(question, ranks, space.table, space.ruled_out, trace, belief)


def size_plan(
    question: PlanningRequest, plan: Plan, trace: TraceVariants, belief: Calibration
) -> ForecastTable:
    """One plan, on as many devices as it takes.

    Raises:
        UserError: If a rule refuses it, or the model cannot be traced.
    """
    if refused := refusal(plan, question.around(plan.world_size)):
        raise UserError(f"the plan is not legal here: {refused.detail} ({refused.rule})")
    return _sized(question, plan.world_size, PlanTable.of([plan]), (), trace, belief)


def _sized(
    question: PlanningRequest,
    ranks: int,
    table: PlanTable,
    ruled_out: tuple[tuple[str, int], ...],
    trace: TraceVariants,
    belief: Calibration,
) -> ForecastTable:
    footprint = trace(variants_of(table))
    work = work_of(footprint, question.device, plan_features(table, question.model, footprint))
    forecasts = forecast(work, belief, float(question.limit_bytes))
    host = host_bytes(work)
    hosted = host <= question.host_limit_bytes
    return ForecastTable(
        spec=question.spec,
        ranks=ranks,
        limit_bytes=question.limit_bytes,
        line_bytes=question.line_bytes,
        table=table,
        footprint=footprint,
        work=work,
        forecasts=forecasts,
        ruled_out=ruled_out,
        host_bytes=host,
        hosted=hosted,
        keeps=hosted & within_line(forecasts, question.limit_bytes, question.line_bytes),
    )


def within_line(forecasts: Forecasts, limit_bytes: float, line_bytes: float) -> Flags:
    """Which plans can be recommended where one rank may hold `limit_bytes`."""
    fits = fits_within(forecasts, limit_bytes)
    keeps: Flags = (forecasts.peak_bytes <= line_bytes) & (fits >= SURE_TO_FIT)
    return keeps


def fits_within(forecasts: Forecasts, limit_bytes: float) -> Numbers:
    """The probability that each plan's peak stays below a limit."""
    limits = np.full(len(forecasts), float(limit_bytes))
    return probability_below(limits, forecasts.peak_bytes, forecasts.peak_deviation)


def fastest(forecasts: Forecasts, among: Flags) -> Counts:
    """Rows in the order of their speed, one for each group of equal forecasts.

    Plans that differ only in what a forecast does not tell apart share their speed and peak; the
    first of them stands for all. Among equally fast ones the smaller peak goes first.
    """
    rows = np.flatnonzero(among)
    speed, peak = forecasts.samples_per_second[rows], forecasts.peak_bytes[rows]
    ordered = rows[np.lexsort((rows, peak, -speed))]
    if not len(ordered):
        return ordered
    same = _same(forecasts.samples_per_second[ordered]) & _same(forecasts.peak_bytes[ordered])
    return ordered[~same]


def alike(forecasts: Forecasts, row: int) -> Counts:
    """Rows whose forecast is that of `row`, itself included."""
    tolerance = 10.0**-_DIGITS
    near = np.isclose(
        forecasts.samples_per_second, forecasts.samples_per_second[row], rtol=tolerance, atol=0
    ) & np.isclose(forecasts.peak_bytes, forecasts.peak_bytes[row], rtol=tolerance, atol=0)
    return np.flatnonzero(near)


def _same(values: Numbers) -> Flags:
    """Which values are the one before them."""
    before = np.concatenate([[np.nan], values[:-1]])
    same: Flags = np.isclose(values, before, rtol=10.0**-_DIGITS, atol=0)
    return same


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The forecast of one plan; intervals hold the value with 95 % confidence.

    `seconds` are those of one optimizer step by term, `held_bytes` those of the rank that holds
    most at its peak by category; both add up to their totals. `alike` counts the plans that no
    forecast tells from this one, itself included. `stage` is where the pipeline is fullest,
    None without one.
    """

    key: str
    plan: Plan
    world_size: int
    samples_per_second: Estimate
    tokens_per_second_per_device: float
    mfu: float
    step_seconds: Estimate
    peak_bytes: Estimate
    fits: float  # probability that the peak stays below the limit
    keeps: bool  # whether it is recommended: below the line, and sure enough to fit
    limited_by: str
    stage: str | None
    seconds: tuple[tuple[str, float], ...]
    held_bytes: tuple[tuple[str, float], ...]
    host_bytes: float  # of the host's memory, one rank
    recomputed: float
    hidden_seconds: float
    alike: int
    lossy: str = ""  # which knobs change the numerics, empty if none does


def expected(sized: ForecastTable, row: int, limit_bytes: float | None = None) -> Expected:
    """The plan in a row; `limit_bytes` is what P(fits) is told for, the question's if None."""
    told, plan = sized.forecasts, sized.plan(row)
    one = told.take(np.array([row]))
    limit = sized.limit_bytes if limit_bytes is None else limit_bytes
    return Expected(
        key=plan.key,
        plan=plan,
        world_size=plan.world_size,
        samples_per_second=_around(one.samples_per_second[0], one.step_deviation[0]),
        tokens_per_second_per_device=float(one.tokens_per_second_per_device[0]),
        mfu=float(one.mfu[0]),
        step_seconds=_around(one.step_seconds[0], one.step_deviation[0]),
        peak_bytes=_around(one.peak_bytes[0], one.peak_deviation[0]),
        fits=float(fits_within(one, limit)[0]),
        keeps=bool(sized.keeps[row]),
        limited_by=one.limited_by(0),
        stage=one.fullest_stage(0) if plan.pipeline > 1 else None,
        seconds=tuple(one.by_term(0).items()),
        held_bytes=tuple(one.by_category(0).items()),
        host_bytes=float(sized.host_bytes[row]),
        recomputed=float(one.recomputed[0]),
        hidden_seconds=float(one.hidden_seconds[0]),
        alike=len(alike(told, row)),
        lossy=lossy_words(plan, sized.spec),
    )


def _around(value: float, deviation: float) -> Estimate:
    factor = float(np.exp(SURE * deviation))
    return Estimate(value=float(value), low=float(value) / factor, high=float(value) * factor)
