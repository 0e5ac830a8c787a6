"""Context of explanations: a study's records, and forecasts calibrated with them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from orchestrator.core.fingerprints import alike
from orchestrator.core.objective import memory_limit_of
from orchestrator.core.state import SweepState
from orchestrator.forecast.calibration import MOST_RECORDS, Footprints, calibrated, study_device
from orchestrator.forecast.request import TraceVariants, planning_request
from orchestrator.forecast.table import (
    ForecastRow,
    ForecastTable,
    forecast_table,
    single_plan_table,
)
from search_spaces.costs.calibration import Calibration, shipped_calibration
from search_spaces.errors import UserError
from search_spaces.knobs.registry import KNOBS
from search_spaces.knobs.search_defaults import Values
from search_spaces.plan import COUNTS, DEFAULTS, Plan, knob_problem
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from search_spaces.trial import Refused

_LARGEST_COUNT = 999_999_999  # forecasts calculate with 64 bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastContext:
    """A study, with forecasts of every legal plan.

    Attributes:
        forecasts: Of all plans of the space.
    """

    state: SweepState
    calibration: Calibration
    trace: TraceVariants
    forecasts: ForecastTable

    @property
    def rule_context(self) -> RuleContext:
        """The context in which rules are checked."""
        return self.forecasts.request.rule_context(self.forecasts.ranks)

    def expected(self, plan: Plan) -> ForecastRow | None:
        """Returns the forecast of a plan, inside or outside the space; None if it is not legal."""
        rows = self.forecasts.table.rows_of(plan)
        if len(rows):
            return self.forecasts.row(int(rows[0]))
        if refusal(plan, self.rule_context) is not None:
            return None
        return single_plan_table(self.forecasts.request, plan, self.trace, self.calibration).row(0)


def forecast_context(state: SweepState) -> ForecastContext:
    """Builds the context of a study.

    No data is read, and no code of a user's model runs.

    Raises:
        UserError: If the model cannot be found or traced, the study's device is unknown, or no
            plan is legal.
    """
    from orchestrator.study.reader import model_of

    spec, records = state.spec, state.records
    device = study_device(spec, records)
    model = model_of(state)
    request = planning_request(spec, model, device, ranks=(_ranks(state),))
    limits = (limit for record in reversed(records) if (limit := memory_limit_of(record)))
    request = replace(request, limit_bytes=next(limits, request.limit_bytes))
    trace = Footprints(spec, request.kind, run_code=False)
    calibration = calibrated(
        shipped_calibration().for_device(device),
        alike(records, state.last_fingerprint)[-MOST_RECORDS:],
        model=model,
        device=device,
        trace=trace,
    )
    return ForecastContext(
        state=state,
        calibration=calibration,
        trace=trace,
        forecasts=forecast_table(request, request.ranks[0], trace, calibration),
    )


def forecasts_or_reason(state: SweepState) -> tuple[ForecastContext | None, str]:
    """Returns the context of a study; None and the reason if nothing can be forecast here."""
    try:
        return forecast_context(state), ""
    except UserError as error:
        return None, " ".join(str(error).split())


def _ranks(state: SweepState) -> int:
    workers = state.spec.cluster.workers
    tried = max(record.plan.world_size for record in state.records)
    return tried if workers == "auto" else max(workers, tried)


def knob_args(texts: Iterable[str]) -> dict[str, Any]:
    """Parses `micro_batch=32`, `compile=true` and so on.

    Raises:
        UserError: If a name is not a knob, a value is invalid, or a knob has two values.
    """
    names = [knob.name for knob in KNOBS]
    values: dict[str, Any] = {}
    for word in (word for text in texts for word in text.replace(",", " ").split()):
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"--plan {word!r} must be KNOB=VALUE, such as micro_batch=32")
        if name not in names:
            raise UserError(f"--plan {name!r} is not a knob; the knobs are {', '.join(names)}")
        value = _value(name, text)
        if values.setdefault(name, value) != value:
            raise UserError(f"--plan names {name} twice, with {values[name]} and {value}")
    if not values:
        raise UserError("--plan needs at least one KNOB=VALUE, such as micro_batch=32")
    return values


def _value(name: str, text: str) -> Any:
    """Parses the value of a knob as a specification has it, in letters of any case."""
    try:
        value = yaml.safe_load(text.lower())
    except (yaml.YAMLError, ValueError):  # a number may have too many digits
        value = text
    problem = knob_problem(name, value)
    if problem is None and name in COUNTS and value > _LARGEST_COUNT:
        problem = f"{name} is {value}, must be at most {_LARGEST_COUNT}"
    if problem is not None:
        raise UserError(f"--plan: {problem}")
    return value


def complete_plan(
    values: Mapping[str, Any], template: Plan, domains: Mapping[str, Values], global_batch: int
) -> Plan | Refused:
    """Completes some knobs to a plan, with the other knobs of a template where they fit.

    Knobs that become inactive get their default. Knobs that become active get their default if it
    is searched, or else the first value that is. Data ranks are those that tensor and pipeline
    leave. With FSDP, parameters are offloaded where the optimizer states are.

    Returns:
        The plan, or the refusal if the global batch is not a multiple of micro_batch x data.
    """
    completed: dict[str, Any] = {}
    template_values = template.as_dict()
    for knob in KNOBS:
        name = knob.name
        if name in values:
            completed[name] = values[name]
        elif not knob.is_active(completed):
            completed[name] = DEFAULTS[name]
        elif name == "data" and not values.keys().isdisjoint(("tensor", "pipeline")):
            split = completed["tensor"] * completed["pipeline"]
            completed[name] = max(template.world_size // split, 1)
        elif name == "offload_parameters" and completed["engine"] == "torch":
            completed[name] = completed["offload_optimizer"]
        elif knob.is_active(template_values):
            completed[name] = template_values[name]
        else:
            searched = domains.get(name, ())
            default = DEFAULTS[name]
            completed[name] = default if default in searched or not searched else searched[0]
    micro, groups = completed["micro_batch"], completed["data"] // completed["context"]
    accumulation, remainder = divmod(global_batch, max(micro * groups, 1))
    if remainder:
        detail = (
            f"the global batch of {global_batch} is not a multiple of micro_batch {micro} x data"
            f" {groups} = {micro * groups}"
        )
        return Refused(rule="global_batch_is_kept", detail=detail)
    return Plan(**completed, accumulation=values.get("accumulation", accumulation))
