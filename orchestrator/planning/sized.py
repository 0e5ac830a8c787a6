"""All legal plans on so many devices, and what they are expected to take, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.planning.host import host_bytes
from orchestrator.planning.question import SURE_TO_FIT, Question, TraceVariants
from search_spaces.errors import UserError
from search_spaces.footprint import Footprint
from search_spaces.forecast.belief import Belief
from search_spaces.forecast.executions import Counts, Flags, Numbers
from search_spaces.forecast.forecast import Forecasts, forecast
from search_spaces.forecast.planned import executions_of, variants_of
from search_spaces.forecast.scales import probability_below
from search_spaces.forecast.work import Work, work_of
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.rules import refusal
from search_spaces.space import build_space
from search_spaces.spec.schema import SweepSpec

_DIGITS = 9  # of two forecasts that are one and the same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sized:
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


def size_up(question: Question, ranks: int, trace: TraceVariants, belief: Belief) -> Sized:
    """Enumerates the legal plans on so many devices and forecasts them all.

    Raises:
        SpecError: If no plan is legal.
        UserError: If the model cannot be traced.
    """
    space = build_space(question.around(ranks), ranks)
    return _sized(question, ranks, space.table, space.ruled_out, trace, belief)


def size_plan(question: Question, plan: Plan, trace: TraceVariants, belief: Belief) -> Sized:
    """One plan, on as many devices as it takes.

    Raises:
        UserError: If a rule refuses it, or the model cannot be traced.
    """
    if refused := refusal(plan, question.around(plan.world_size)):
        raise UserError(f"the plan is not legal here: {refused.detail} ({refused.rule})")
    return _sized(question, plan.world_size, PlanTable.of([plan]), (), trace, belief)


def _sized(
    question: Question,
    ranks: int,
    table: PlanTable,
    ruled_out: tuple[tuple[str, int], ...],
    trace: TraceVariants,
    belief: Belief,
) -> Sized:
    footprint = trace(variants_of(table))
    work = work_of(footprint, question.device, executions_of(table, question.model, footprint))
    forecasts = forecast(work, belief, float(question.limit_bytes))
    host = host_bytes(work)
    hosted = host <= question.host_limit_bytes
    return Sized(
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
        keeps=hosted & keeps_line(forecasts, question.limit_bytes, question.line_bytes),
    )


def keeps_line(forecasts: Forecasts, limit_bytes: float, line_bytes: float) -> Flags:
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
