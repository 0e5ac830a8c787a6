"""Events of a sweep. Each has its time, `at`, in seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.notes import Note
from orchestrator.core.reasons import StopReason, TrialReason, measures_again
from orchestrator.core.records import Record
from search_spaces.facts import Understanding
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Fingerprint, PlanForecast

if TYPE_CHECKING:
    from search_spaces.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStarted:
    """A driver opened the study; `records` and `validations` are those of earlier drivers.

    `compile_seconds` is how long DeepSpeed's operators were compiled before, once on a machine.
    """

    study: str
    spec: SweepSpec
    space: Space
    records: tuple[Record, ...]
    memory_limit_bytes: int | None  # per rank; None until a trial reports the device's
    at: float
    validations: tuple[Record, ...] = ()
    groups: int = 1  # trials that can run at the same time
    understanding: Understanding | None = None  # None if the study has none of this version
    compile_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted:
    """A worker group is ready; `start_seconds` is how long its first trial waited for it."""

    world_size: int
    fingerprint: Fingerprint
    start_seconds: float = 0.0
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial of a plan started, or the validation of the trial of that number.

    `ask_seconds` is how long choosing the plan took, forecasts and search together; None without
    a choice: the first plan, a retry, a validation.
    """

    number: int
    plan: Plan
    reason: TrialReason
    deadline_seconds: float  # after `at`; then the trial is ended
    at: float
    forecast: PlanForecast | None = None  # None if no forecast was ready
    validation: bool = False
    ask_seconds: float | None = None

    @property
    def is_repeat(self) -> bool:
        """True if it measures a plan again."""
        return measures_again(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial or a validation ended, and its record is in the study.

    `waited_seconds` is from its start until its workers were ready for it: nodes had room, and
    new workers had started if it needed any. None if its runner died.
    """

    record: Record
    at: float
    waited_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A message for the user: a group was replaced, a device was throttled, ..."""

    note: Note
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEnded:
    """The sweep ended.

    `regret_bound` is an upper bound on the objective of the `untried` plans, as a ratio
    to that of the best plan (95 % confidence, model-based); None if the search cannot tell.
    `compile_seconds` is how long DeepSpeed's operators were compiled, and `start_seconds` how long
    the first workers took to start, which no budget counts.
    """

    reason: StopReason
    at: float
    regret_bound: float | None = None
    untried: int = 0
    compile_seconds: float = 0.0
    start_seconds: float = 0.0


Event = SweepStarted | GroupStarted | TrialStarted | TrialEnded | Noted | SweepEnded
