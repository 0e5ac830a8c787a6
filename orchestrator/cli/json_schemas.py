"""JSON Schemas of the documents that `--json` prints, from the types of their values."""

from typing import Any, Literal, get_args, get_type_hints

from pydantic import TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema

from orchestrator.core.records import Record
from orchestrator.core.state import ValidationState
from orchestrator.explain.trial import TrialExplanation
from orchestrator.explain.untried import UntriedExplanation
from orchestrator.explain.winner import BestExplanation
from orchestrator.export.verify import Finding
from orchestrator.forecast.planner import PlanningReport
from orchestrator.forecast.table import ForecastRow
from orchestrator.report.document import FORECAST
from search_spaces.facts import Understanding
from search_spaces.plan import Plan
from search_spaces.specification.json_schema import DRAFT
from search_spaces.trial import Estimate, Outcome, PlanForecast
from workers.probe.doctor import Feature

_Strings, _Object = list[str], dict[str, Any]
_many = list.__class_getitem__  # the list of a type that is made here


def _values(title: str, /, **types: Any) -> Any:
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in types.items()}
    return create_model(title, **fields)


_Forecast = _values("Forecast", samples_per_second=Estimate, peak_bytes=Estimate,
                    fits_probability=float)  # fmt: skip
_TRIAL = {"trial": int, "plan": Plan, "plan_words": str, "lossy": str, "outcome": str,
    "detail": str, "reason": str, "started_at": float, "ended_at": float,
    "samples_per_second": Estimate | None, "step_seconds": Estimate | None,
    "tokens_per_second": float | None, "joules_per_token": float | None,
    "gradient_norm": float | None, "expert_skew": float | None,
    "attention_backends": _Strings | None,
    "peak_bytes": int | None, "wanted_bytes": int | None, "limit_bytes": int | None,
    "forecast": _Forecast | None}  # fmt: skip
_Trial = _values("Trial", **_TRIAL)
_EXPLANATIONS: dict[Any, dict[str, Any]] = {
    BestExplanation: {"explains": Literal["best"], "best": str},
    TrialExplanation: {"explains": Literal["trial"], "reasons": _Strings},
    UntriedExplanation: {"explains": Literal["untried"], "reasons": _Strings},
}
KINDS: dict[str, Any] = {
    "check": _values(
        "Check", specification=str, study=str, understood=Understanding, model=_Object, ranks=int,
        ranks_assumed=bool, legal_plans=int, ruled_out=dict[str, int], baseline=Plan,
        searched=dict[str, list[Any]], effective_specification=_Object),
    "plan": PlanningReport,
    "report": _values(
        "Report", study=str, understood=Understanding | None, model=str, sequence_length=int,
        objective=str, memory_limit_bytes=int | None, ended=str | None, untried_plans=int | None,
        untried_at_most_ratio=float | None, answer=_Trial | None, validation=ValidationState,
        equal_trials=list[int], outcomes=dict[str, int], trials=_many(_Trial),
        other_fingerprints=_Object | None,
        validations=_many(_values("Validation", **_TRIAL, failure=str | None))),
    "explain": BestExplanation | TrialExplanation | UntriedExplanation,
    "trial": Outcome,
    "export": _values(
        "Export", study=str, trial=int, format=str, folder=str, files=_Strings, command=str,
        environment=dict[str, str], left_to_you=_Strings),
    "verify": _values("Verify", folder=str, verified=bool, findings=list[Finding]),
    "retry": _values("Retry", study=str, trials=list[int]),
    "sync": _values("Sync", study=str, store=str, trials=int, validations=int, added=int),
    "models": _many(_values("Model", name=str, parameters=int, active_parameters=int, blocks=int,
                           task=str, architecture=str)),
    "doctor": _values(
        "Doctor", system=_Object, cuda_devices=_Strings, packages=_Object, features=list[Feature]),
    "probe": _values("Probe", file=str, device=_Object),
}  # fmt: skip


def document_schema(kind: str, version: int) -> dict[str, Any]:
    """Returns the schema of a kind of document, one of `KINDS`; releases may add fields to it."""
    generator = GenerateJsonSchema if kind == "trial" else _Converted
    result = TypeAdapter(KINDS[kind]).json_schema(mode="serialization", schema_generator=generator)
    properties = {"kind": {"const": kind}, "version": {"const": version}, "result": result}
    outer = {"type": "object", "properties": properties, "required": [*properties]}
    return {"$schema": DRAFT, **outer, "$defs": result.pop("$defs", {})}


class _Converted(GenerateJsonSchema):
    """Describes values as `orchestrator.report.document` converts them."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        kind = schema["cls"]
        if kind is Record:
            return self._of(_Trial)
        made = super().dataclass_schema(schema)
        fields, more = made["properties"], dict(_EXPLANATIONS.get(kind, {}))
        if kind in get_args(Outcome):
            fields, more = {"kind": fields["kind"]}, {"detail": str}
        elif kind is ForecastRow:
            more = {name: get_type_hints(PlanForecast)[name] for name in FORECAST}
            del fields["forecast"]
        elif kind is Understanding:
            more = {"rows": list[list[str]]}
        fields |= {name: self._of(one) for name, one in more.items()}
        return made | {"properties": fields, "required": [*fields]}

    def _of(self, kind: Any) -> dict[str, Any]:
        return self.generate_inner(TypeAdapter(kind).core_schema)
