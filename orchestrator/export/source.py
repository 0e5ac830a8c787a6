"""The plan that is taken away: of which trial, and what its measurement promises."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.state import SweepState
from search_spaces.errors import StudyError
from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """A measured plan of a study. `validation` is of this plan and holds; None where none does."""

    study: str
    spec: SweepSpec
    model: ModelFacts
    record: Record
    outcome: Measured
    validation: Measured | None
    device: str  # "cpu" or "cuda"
    hosts: int  # that its ranks ran on

    @property
    def plan(self) -> Plan:
        """Its knobs."""
        return self.record.plan

    @property
    def told(self) -> Measured:
        """The longer of its measurements."""
        return self.validation or self.outcome


def chosen_record(state: SweepState, number: int | None) -> Record:
    """The trial of that number, or the sweep's answer.

    Raises:
        StudyError: If there is no such trial, or it has measured nothing.
    """
    if number is None:
        if state.best is None:
            raise StudyError(f"study {state.study} has no plan that was measured and fits")
        return state.best
    found = next((record for record in state.records if record.number == number), None)
    if found is None:
        numbers = sorted(record.number for record in state.records)
        raise StudyError(
            f"study {state.study} has no finished trial {number}: its trials are"
            f" {numbers[0]} to {numbers[-1]}"
        )
    if not isinstance(found.outcome, Measured):
        kind = found.outcome.kind.replace("_", " ")
        raise StudyError(
            f"trial {number} of study {state.study} ended with {kind}: only what was measured"
            " is exported"
        )
    return found


def export_source(state: SweepState, record: Record, model: ModelFacts) -> ExportSource:
    """A measured trial of a sweep, as it is taken away."""
    assert isinstance(record.outcome, Measured)
    validation = state.validated
    validated = (
        validation.outcome
        if validation is not None and validation.number == record.number
        else None
    )
    seen = record.fingerprint or state.fingerprint
    return ExportSource(
        study=state.study,
        spec=state.spec,
        model=model,
        record=record,
        outcome=record.outcome,
        validation=validated if isinstance(validated, Measured) else None,
        device=seen.device if seen is not None else "cpu",
        hosts=seen.hosts if seen is not None else 1,
    )
