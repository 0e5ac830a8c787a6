"""The state of a sweep that has run, from its study alone: no model, no data, no Ray."""

from __future__ import annotations

from orchestrator.core.events import SweepEnded, SweepStarted, TrialEnded
from orchestrator.core.state import SweepState, advance, begin
from search_spaces.errors import StudyError
from search_spaces.record import Record
from search_spaces.spec.schema import SweepSpec


def stored_state(
    spec: SweepSpec,
    name: str,
    records: tuple[Record, ...],
    proofs: tuple[Record, ...] = (),
    ended: SweepEnded | None = None,
) -> SweepState:
    """The state after these records and proofs, and the end; the space is what was tried of it.

    Raises:
        StudyError: If there are no records.
    """
    if not records:
        raise StudyError(f"the study {name} has no finished trial yet")
    from search_spaces.space import space_of

    started = SweepStarted(
        study=name,
        spec=spec,
        space=space_of([record.plan for record in records], spec),
        records=(),
        memory_limit_bytes=spec.memory_limit_bytes,
        at=min(record.started_at for record in records),
    )
    state = begin(started)
    for record in (*records, *proofs):
        state = advance(state, TrialEnded(record=record, at=record.ended_at))
    return state if ended is None else advance(state, ended)


def load_state(spec: SweepSpec, name: str) -> SweepState:
    """The state of a sweep that has run, read from its study.

    Raises:
        StudyError: If there is no such study, or it has no records.
    """
    from orchestrator.study import load_end, load_proofs, load_records

    records, proofs = load_records(spec, name), load_proofs(spec, name)
    return stored_state(spec, name, records, proofs, load_end(spec, name))
