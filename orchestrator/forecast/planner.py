"""From a question to its answer: which spaces are looked at, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter

from orchestrator.core.pareto import front_rows, thinned
from orchestrator.forecast.alternatives import (
    ClosestPlan,
    closest_plan,
    large_enough,
    min_devices,
    sizes_between,
)
from orchestrator.forecast.breakdown import Breakdown, breakdown
from orchestrator.forecast.memory_budgets import MemoryBudget, memory_budgets
from orchestrator.forecast.request import PlanningRequest, TraceVariants
from orchestrator.forecast.table import (
    Expected,
    ForecastTable,
    expected,
    fastest,
    forecast_table,
    size_plan,
)
from orchestrator.forecast.tiling import TileWaste, wasteful_sizes
from search_spaces.costs.calibration import Calibration
from search_spaces.errors import SpecError
from search_spaces.hardware import catalogue
from search_spaces.plan import Plan
from search_spaces.space import build_space

MOST_POINTS = 2_000  # of the chart that shows all plans
_FRONT_STEP = 0.03  # share by which a plan of the front is faster than the one before
SURELY_NOT = 0.01  # P(fits) below which a plan is ruled out by memory
_MOST_PRICED = 6  # counts of devices whose prices are compared where the user named one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """What so many devices can do.

    Of `plans` legal ones, `fitting` are recommended, `unhosted` offload more than the host has
    room for and `hopeless` surely do not fit the device; the others are above the line or too near
    to the limit. `best` is empty where none is recommended, and
    `nearest` then says what is missing. `refusal` says why no plan is legal, None if some are.
    `price_per_billion_tokens` is that of the best plan, None where no price is known.
    """

    ranks: int
    plans: int
    fitting: int
    hopeless: int
    unhosted: int
    ruled_out: tuple[tuple[str, int], ...]
    best: tuple[Expected, ...]
    nearest: ClosestPlan | None
    refusal: str | None
    price_per_billion_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningReport:
    """What is expected of a model on a kind of device.

    `answer` is that of the count that was asked for first, `sizes` those of all counts looked at,
    in their order. `front` holds plans that no other beats in speed with less memory, `cloud`
    (peak bytes, samples per second, P(fits)) of all plans or of a sample of them.
    `price_front` holds counts of devices that no other beats in speed for less money per token.
    `enough` names devices of which so many would do where nothing fits.
    """

    model: str
    parameters: int
    tokens: int  # of a sample
    global_batch: int
    device: str
    device_memory_bytes: int
    node_devices: int
    limit_bytes: int
    line_bytes: float
    price_per_hour: float | None
    answer: ScaleResult
    sizes: tuple[ScaleResult, ...]
    fewest_ranks: int | None
    front: tuple[Expected, ...]
    cloud: tuple[tuple[float, float, float], ...]
    price_front: tuple[int, ...]
    memory_sizes: tuple[MemoryBudget, ...]
    wasteful: tuple[TileWaste, ...]
    enough: tuple[str, ...]
    notes: tuple[str, ...]
    forecast_plans: int
    seconds: float
    provenance: str

    @property
    def best(self) -> Expected | None:
        """The plan that is recommended, None if nothing fits."""
        return self.answer.best[0] if self.answer.best else None


_PLANNED: TypeAdapter[PlanningReport] = TypeAdapter(PlanningReport)


def planned_to_json(planned: PlanningReport) -> str:
    """As JSON, which `planned_from_json` reads back."""
    return _PLANNED.dump_json(planned, indent=1).decode() + "\n"


def planned_from_json(text: str) -> PlanningReport:
    """What `planned_to_json` wrote."""
    return _PLANNED.validate_json(text)


def memory_front(sized: ForecastTable) -> tuple[Expected, ...]:
    """Plans that no other beats with less memory, up to the limit."""
    told = sized.forecasts
    within = np.flatnonzero(sized.hosted & (told.peak_bytes <= sized.limit_bytes))
    rows = within[front_rows(told.peak_bytes[within], told.samples_per_second[within])]
    shown = thinned(rows, told.samples_per_second, step=_FRONT_STEP, most=10)
    return tuple(expected(sized, int(row)) for row in shown)


def cloud(sized: ForecastTable) -> tuple[tuple[float, float, float], ...]:
    """All plans, or every so many of them in the order of their speed, the front with them."""
    told = sized.forecasts
    rows = np.flatnonzero(sized.hosted)
    rows = rows[np.argsort(-told.samples_per_second[rows], kind="stable")]
    if len(rows) > MOST_POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_POINTS).astype(np.int64)]
        hosted = np.flatnonzero(sized.hosted)
        kept = hosted[front_rows(told.peak_bytes[hosted], told.samples_per_second[hosted])]
        rows = np.unique(np.concatenate([rows, kept]))
    columns = (told.peak_bytes[rows], told.samples_per_second[rows], told.fits[rows])
    return tuple(
        zip(
            *(np.char.mod("%.5g", column).astype(float).tolist() for column in columns), strict=True
        )
    )


def price_front(sizes: tuple[ScaleResult, ...]) -> tuple[int, ...]:
    """Counts of devices that no other beats in speed for less money per token."""
    priced = [size for size in sizes if size.price_per_billion_tokens is not None]
    if not priced:
        return ()
    cost = np.array([size.price_per_billion_tokens for size in priced], dtype=float)
    speed = np.array([size.best[0].samples_per_second.value for size in priced])
    return tuple(sorted(priced[row].ranks for row in front_rows(cost, speed).tolist()))


def notes(question: PlanningRequest, longest: int, mean: float) -> tuple[str, ...]:
    """What a user should know beside the figures; tokens of the longest sample and in the mean."""
    return (*_precision_notes(question), *_length_notes(question, longest, mean))


def _precision_notes(question: PlanningRequest) -> Iterator[str]:
    precision, device = question.spec.train.precision, question.device
    if precision != "fp32" and not device.peak_flops_per_second(precision):
        other = next((p for p in ("fp16", "bf16") if device.peak_flops_per_second(p)), "fp32")
        yield (
            f"{device.name} has no units for {precision}, which is forecast at the speed of fp32;"
            f" train.precision: {other} would be faster"
        )


def _length_notes(question: PlanningRequest, longest: int, mean: float) -> Iterator[str]:
    if question.spec.data.kind != "fixed":
        yield (
            f"samples have up to {longest:,} tokens, {mean:,.0f} in the mean: peaks are those of"
            " the longest, seconds those of rows as full as each way of batching makes them"
        )


class Planner:
    """Answers one question; looks at each count of devices once."""

    def __init__(
        self,
        question: PlanningRequest,
        trace: TraceVariants,
        belief: Calibration,
        names: Mapping[int, str] | None = None,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            question: What is asked.
            trace: Gives footprints of the question's model.
            belief: What is believed of software and machines.
            names: What sizes of the model's matrices are called.
        """
        self._question = question
        self._trace = trace
        self._belief = belief
        self._names = dict(names or {})
        self._answers: dict[int, ScaleResult] = {}
        self._forecast_plans = 0
        self._tokens, self._mean_tokens = 0, 0.0  # of the longest sample, and in the mean

    def plan(self, began: float | None = None) -> PlanningReport:
        """The whole answer.

        Args:
            began: The `perf_counter` at which the user asked; now if None.

        Raises:
            UserError: If no plan is legal on the first count, or the model cannot be traced.
        """
        question = self._question
        began = time.perf_counter() if began is None else began
        sized = self._sized(question.ranks[0])
        answer = self._told(sized)
        least = self._fewest()
        compared = sorted({*question.ranks, *self._priced(least), *((least,) if least else ())})
        sizes = tuple(self._answer(ranks) for ranks in compared)
        best = answer.best[0] if answer.best else None
        return PlanningReport(
            model=question.model.name,
            parameters=question.model.parameters,
            tokens=self._tokens,
            global_batch=question.spec.train.global_batch,
            device=question.device.name,
            device_memory_bytes=question.device.memory_bytes,
            node_devices=question.device.node_devices,
            limit_bytes=question.limit_bytes,
            line_bytes=question.line_bytes,
            price_per_hour=question.price_per_hour,
            answer=answer,
            sizes=sizes,
            fewest_ranks=least,
            front=memory_front(sized),
            cloud=cloud(sized),
            price_front=price_front(sizes),
            memory_sizes=self._memory_sizes(),
            wasteful=() if best is None else self._wasteful(sized),
            enough=() if answer.nearest is None else self._enough(answer.nearest.needed_bytes),
            notes=notes(question, self._tokens, self._mean_tokens),
            forecast_plans=self._forecast_plans,
            seconds=time.perf_counter() - began,
            provenance=self._belief.provenance,
        )

    def explain(self, plan: Plan) -> Breakdown:
        """The arithmetic of one plan, whether it is in the space or not.

        Raises:
            UserError: If the plan is not legal here, or the model cannot be traced.
        """
        sized = size_plan(self._question, plan, self._trace, self._belief)
        return breakdown(sized, 0, self._belief)

    def plan_with_key(self, key: str) -> Plan | None:
        """The legal plan of this key on any count that was asked for, None if there is none."""
        question = self._question
        for ranks in question.ranks:
            space = build_space(question.around(ranks), ranks)
            for plan in space.table:
                if plan.key == key:
                    return plan
        return None

    def _sized(self, ranks: int) -> ForecastTable:
        sized = forecast_table(self._question, ranks, self._trace, self._belief)
        self._forecast_plans += len(sized.table)
        self._tokens = sized.footprint.tokens
        self._mean_tokens = sized.footprint.mean_tokens
        return sized

    def _answer(self, ranks: int) -> ScaleResult:
        if ranks not in self._answers:
            try:
                self._told(self._sized(ranks))
            except SpecError as error:
                self._answers[ranks] = _refused(ranks, error)
        return self._answers[ranks]

    def _told(self, sized: ForecastTable) -> ScaleResult:
        question, told = self._question, sized.forecasts
        order = fastest(told, sized.keeps)[: question.top]
        best = tuple(expected(sized, int(row)) for row in order)
        headroom = question.spec.objective.headroom
        answer = ScaleResult(
            ranks=sized.ranks,
            plans=len(sized.table),
            fitting=int(sized.keeps.sum()),
            hopeless=int((sized.hosted & (told.fits < SURELY_NOT)).sum()),
            unhosted=int((~sized.hosted).sum()),
            ruled_out=sized.ruled_out,
            best=best,
            nearest=None if best else closest_plan(sized, headroom),
            refusal=None,
            price_per_billion_tokens=self._price(best[0]) if best else None,
        )
        self._answers[sized.ranks] = answer
        return answer

    def _price(self, best: Expected) -> float | None:
        if self._question.price_per_hour is None:
            return None
        tokens = best.samples_per_second.value * self._mean_tokens * 3600
        return self._question.price_per_hour * best.world_size / tokens * 1e9

    def _fewest(self) -> int | None:
        question = self._question
        if question.kind == "cpu":  # ranks of a CPU share its memory: fewer are no cheaper
            return None
        return min_devices(
            lambda ranks: bool(self._answer(ranks).best),
            start=question.ranks[0],
            whole=question.device.node_devices,
            named=question.ranks,
        )

    def _priced(self, least: int | None) -> tuple[int, ...]:
        """Counts to compare prices with, where the user named one alone."""
        question = self._question
        if question.price_per_hour is None or len(question.ranks) > 1 or least is None:
            return ()
        sizes = sizes_between(least, question.ranks[0], question.device.node_devices)
        return tuple(size for size in sizes if size & (size - 1) == 0)[-_MOST_PRICED:]

    def _memory_sizes(self) -> tuple[MemoryBudget, ...]:
        question = self._question
        if not question.memory_sizes:
            return ()
        smallest = question.limited_to(min(question.memory_sizes))
        sized = forecast_table(smallest, question.ranks[0], self._trace, self._belief)
        self._forecast_plans += len(sized.table)
        return memory_budgets(question, sized, self._belief)

    def _wasteful(self, sized: ForecastTable) -> tuple[TileWaste, ...]:
        if self._question.kind == "cpu":  # whose units are filled by small tiles
            return ()
        row = int(fastest(sized.forecasts, sized.keeps)[0])
        processors = self._question.device.multiprocessors
        return wasteful_sizes(sized, row, self._names, processors, self._belief)

    def _enough(self, needed_bytes: float) -> tuple[str, ...]:
        if self._question.kind == "cpu":  # ranks have what the specification gives them
            return ()
        found = large_enough(needed_bytes, self._question.device, catalogue())
        return tuple(device.name for device in found)


def _refused(ranks: int, error: SpecError) -> ScaleResult:
    return ScaleResult(
        ranks=ranks,
        plans=0,
        fitting=0,
        hopeless=0,
        unhosted=0,
        ruled_out=(),
        best=(),
        nearest=None,
        refusal="; ".join(fault.advice for fault in error.faults),
        price_per_billion_tokens=None,
    )
