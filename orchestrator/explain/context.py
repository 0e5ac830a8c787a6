"""What explanations of a study rest on: its records, and forecasts that these have corrected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.objective import limit_of
from orchestrator.core.state import SweepState
from orchestrator.forecast.calibration import Footprints, calibrated, study_device
from orchestrator.forecast.request import PlanningRequest, TraceVariants, planning_request
from orchestrator.forecast.table import Expected, ForecastTable, expected, forecast_table, size_plan
from search_spaces.costs.calibration import Calibration, shipped_calibration
from search_spaces.errors import UserError
from search_spaces.hardware import find_device
from search_spaces.knobs.registry import KNOBS
from search_spaces.knobs.search_defaults import Values
from search_spaces.plan import CHOICES, COUNTS, DEFAULTS, NAMES, Plan
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from search_spaces.trial import Estimate, Record, Refused

MOST_RECORDS = 200  # what more of them teach a forecast is less than what learning takes
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_FED = "accumulation"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastContext:
    """A study on one kind of nodes, and what is expected of every legal plan there.

    Plans name no kind of nodes here; `records` are those of trials on that kind.
    """

    state: SweepState
    records: tuple[Record, ...]
    question: PlanningRequest
    belief: Calibration
    trace: TraceVariants
    sized: ForecastTable

    @property
    def around(self) -> RuleContext:
        """What rules look at."""
        return self.question.around(self.question.ranks[0])

    def refusal(self, plan: Plan) -> Refused | None:
        """The first rule that forbids a plan, None if it is legal."""
        return refusal(plan, self.around)

    def expected(self, plan: Plan) -> Expected | None:
        """What is expected of a plan, whether the study searches it or not; None if not legal."""
        rows = self.sized.table.rows_of(plan)
        if len(rows):
            return expected(self.sized, int(rows[0]))
        if self.refusal(plan) is not None:
            return None
        return expected(size_plan(self.question, plan, self.trace, self.belief), 0)

    def record_of(self, plan: Plan) -> Record | None:
        """The last trial of a plan; None if it was not tried."""
        return next((one for one in reversed(self.records) if one.plan == plan), None)


def forecast_context(state: SweepState, accelerator: str = "") -> ForecastContext:
    """What explains a study, on nodes of one kind where plans tell kinds apart.

    The model is described and traced, no data are read.

    Raises:
        UserError: If the model cannot be found or traced, nobody knows the device that the study
            ran on, or no plan is legal.
    """
    from workers.models.load import describe

    spec = state.spec.on(accelerator)
    records = tuple(
        replace(record, plan=without_accelerator(record.plan))
        for record in state.records
        if record.plan.accelerator == accelerator
    )
    device = study_device(spec, records)
    told = spec.cluster.accelerators.get(accelerator)
    if told is not None and told.gpu is not None:
        device = find_device(told.gpu)
    model = describe(spec.model, spec.train)
    question = planning_request(spec, model, device, ranks=(_ranks(state),))
    limits = (limit for record in reversed(records) if (limit := limit_of(record)))
    question = question.limited_to(next(limits, question.limit_bytes))
    trace = Footprints(spec, question.kind)
    belief = calibrated(
        shipped_calibration(), records[-MOST_RECORDS:], model=model, device=device, trace=trace
    )
    return ForecastContext(
        state=state,
        records=records,
        question=question,
        belief=belief,
        trace=trace,
        sized=forecast_table(question, question.ranks[0], trace, belief),
    )


def without_accelerator(plan: Plan) -> Plan:
    """The plan without the kind of nodes that it is for."""
    return replace(plan, accelerator="")


def times(estimate: Estimate, factor: float) -> Estimate:
    """A multiple of an estimate."""
    return Estimate(
        value=estimate.value * factor, low=estimate.low * factor, high=estimate.high * factor
    )


def _ranks(state: SweepState) -> int:
    """Ranks that the sweep had: as asked, or of the largest plan that it tried."""
    asked = state.spec.cluster.workers
    tried = max(record.plan.world_size for record in state.records)
    return tried if asked == "auto" else max(asked, tried)


def knob_args(given: Iterable[str]) -> dict[str, Any]:
    """The knobs in `micro_batch=32`, `compile=true` and so on.

    Raises:
        UserError: If one is no knob, its value none that it can have, or it is given twice.
    """
    names = [knob.name for knob in KNOBS]
    found: dict[str, Any] = {}
    for word in (word for text in given for word in text.replace(",", " ").split()):
        name, sign, text = word.partition("=")
        if not sign:
            raise UserError(f"--plan {word!r} is no KNOB=VALUE, such as micro_batch=32")
        if name == _FED:
            raise UserError(
                "--plan accumulation is no knob: it follows from the global batch, micro_batch"
                " and data"
            )
        if name not in names:
            raise UserError(f"--plan {name!r} is no knob, the knobs are {', '.join(names)}")
        value = _value(name, text)
        if found.setdefault(name, value) != value:
            raise UserError(f"--plan names {name} twice, with {found[name]} and {value}")
    if not found:
        raise UserError("--plan needs at least one KNOB=VALUE, such as micro_batch=32")
    return found


def _value(name: str, text: str) -> Any:
    """What a knob's value is meant to be.

    Raises:
        UserError: If it can be none.
    """
    if name in NAMES:
        return text
    if name in COUNTS:
        if text.isdecimal() and len(text) <= 9 and int(text) >= COUNTS[name]:
            return int(text)
        raise UserError(
            f"--plan {name}={text}: must be a whole number from {COUNTS[name]} to 999999999"
        )
    if name in CHOICES:
        choices = CHOICES[name]
        for choice in choices:
            if str(choice).lower() == text.lower() or (
                isinstance(choice, bool) and _WORDS.get(text.lower()) is choice
            ):
                return choice
        raise UserError(f"--plan {name}={text}: must be one of {', '.join(map(str, choices))}")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"--plan {name}={text}: must lie in 0.0 to 1.0")
    return share


def plan_asked(
    asked: Mapping[str, Any], like: Plan, domains: Mapping[str, Values], global_batch: int
) -> Plan | Refused:
    """The plan with these knobs, and the rest as in another one as far as it goes with them.

    What does not matter any more stands at rest; what begins to matter has its rest where that is
    searched, else the first value that is. Data ranks are those that tensor and pipeline leave,
    and with FSDP parameters go where the optimizer's states go. Refused if no whole number of
    micro-batches makes up the global batch.
    """
    chosen: dict[str, Any] = {}
    theirs = like.as_dict()
    for knob in KNOBS:
        name = knob.name
        if name in asked:
            chosen[name] = asked[name]
        elif not knob.is_active(chosen):
            chosen[name] = DEFAULTS[name]
        elif name == "data" and not asked.keys().isdisjoint(("tensor", "pipeline")):
            split = chosen["tensor"] * chosen["pipeline"]
            chosen[name] = max(like.world_size // split, 1)
        elif name == "offload_parameters" and chosen["engine"] == "torch":
            chosen[name] = chosen["offload_optimizer"]
        elif knob.is_active(theirs):
            chosen[name] = theirs[name]
        else:
            searched = domains.get(name, ())
            rest = DEFAULTS[name]
            chosen[name] = rest if rest in searched or not searched else searched[0]
    micro, data = chosen["micro_batch"], chosen["data"]
    accumulation, over = divmod(global_batch, micro * data)
    if over:
        detail = (
            f"the global batch of {global_batch} is no multiple of micro_batch {micro} x data"
            f" {data} = {micro * data}"
        )
        return Refused(rule="global_batch_is_kept", detail=detail)
    return Plan(**chosen, accumulation=accumulation)
