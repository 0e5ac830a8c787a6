"""The source of an export: a measured trial of a study."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.losses import loss_tolerance
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.trial import trial_named
from search_spaces.errors import StudyError, UserError
from search_spaces.facts import ModelFacts
from search_spaces.hardware.catalogue import known_device
from search_spaces.plan import Plan
from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """A measured plan of a study; `validation` is one that this plan passed, if any.

    `loss_tolerance` is by how much losses of an export may differ from the trial's, as a share of
    the largest.
    """

    study: str
    spec: SweepSpec
    model: ModelFacts
    record: Record
    outcome: Measured
    validation: Measured | None
    device: str  # "cpu", "cuda" or "tpu"
    hosts: int  # number of hosts of its ranks
    loss_tolerance: float

    @property
    def plan(self) -> Plan:
        """The plan of the trial."""
        return self.record.plan

    @property
    def measured(self) -> Measured:
        """The longer measurement: of the validation, or else of the trial."""
        return self.validation or self.outcome


def slice_of(source: ExportSource) -> Mapping[str, Any] | None:
    """Returns the slice of TPUs that a plan's ranks fill, as slices.yaml describes it, or None.

    Raises:
        UserError: If there is no slice of this size, or nobody knows the TPU.
    """
    if source.device != "tpu":
        return None
    fingerprint, ranks = source.record.fingerprint, source.plan.world_size
    name = known_device(fingerprint.device_name if fingerprint else "").name
    known: Mapping[str, Any] = packaged_table("search_spaces", "devices/slices.yaml")[name]
    if (topology := known["topologies"].get(ranks)) is None:
        sizes = ", ".join(map(str, known["topologies"]))
        raise UserError(f"there is no slice of {ranks} {name}: export a plan for {sizes} ranks")
    return {**known, "topology": topology}


def record_to_export(state: SweepState, number: int | None) -> Record:
    """Returns the record of a trial, or of the best plan if `number` is None.

    Raises:
        StudyError: If there is no such trial, or it measured nothing.
    """
    if number is None:
        if state.best is None:
            raise StudyError(f"study {state.study} has no feasible plan")
        return state.best
    record = trial_named(state, number)
    if not isinstance(record.outcome, Measured):
        kind = record.outcome.kind.replace("_", " ")
        raise StudyError(
            f"trial {number} of study {state.study} ended with {kind}: only measured plans can be"
            " exported"
        )
    return record


def export_source(state: SweepState, record: Record, model: ModelFacts) -> ExportSource:
    """Collects what exports need of a measured trial."""
    passed = state.validated
    longer = passed if passed is not None and passed.number == record.number else record
    assert isinstance(record.outcome, Measured)
    assert isinstance(longer.outcome, Measured)  # else it had not passed
    tolerance = loss_tolerance(longer, state.records, state.spec, record.plan)
    fingerprint = record.fingerprint or state.fingerprint
    return ExportSource(
        study=state.study,
        spec=state.spec,
        model=model,
        record=record,
        outcome=record.outcome,
        validation=None if longer is record else longer.outcome,
        device=fingerprint.device if fingerprint is not None else "cpu",
        hosts=fingerprint.hosts if fingerprint is not None else 1,
        loss_tolerance=tolerance.share,
    )
