"""States for tests of decisions."""

from collections.abc import Sequence
from typing import Any

from orchestrator.core.events import SweepStarted, TrialStarted
from orchestrator.core.reasons import Sampled
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState, begin
from search_spaces.plan import Plan
from search_spaces.trial import Outcome
from tests.orchestrator.records import BEGAN, make_records, make_space, make_spec


def state_after(outcomes: Sequence[Outcome] = (), **sections: Any) -> SweepState:
    """Returns the state of a resumed study with these outcomes, the baseline's first."""
    spec = make_spec(**sections)
    space = make_space(spec)
    return begin(
        SweepStarted(
            study="demo",
            spec=spec,
            space=space,
            records=make_records(space, outcomes),
            memory_limit_bytes=spec.memory_limit_bytes,
            at=BEGAN,
        )
    )


def started(number: int, plan: Plan, at: float = BEGAN) -> TrialStarted:
    return TrialStarted(
        number=number, plan=plan, reason=Sampled(sampler="random"), deadline_seconds=60.0, at=at
    )


def numbers(records: Sequence[Record]) -> list[int]:
    return [record.number for record in records]
