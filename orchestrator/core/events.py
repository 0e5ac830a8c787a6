"""What happens in a sweep. Each event says when, in seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint, PlanForecast, Record

if TYPE_CHECKING:
    from search_spaces.space import Space

LIKELY_TO_FIT = "likely to fit"  # with these words a reason says how likely that is


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStarted:
    """A driver took up the study; `records` is what earlier ones had measured, and validated."""

    study: str
    spec: SweepSpec
    space: Space
    records: tuple[Record, ...]
    memory_limit_bytes: int | None  # per rank; None until a trial tells the device's
    at: float
    validations: tuple[Record, ...] = ()
    groups: int = 1  # trials that can be under way at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted:
    """A group of warm workers is ready."""

    world_size: int
    fingerprint: Fingerprint
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A plan was handed out; or again, as the validation of the trial of that number.

    `ask_seconds` is what choosing the plan took, forecasts and search together; None where there
    was no choice: the first plan, one that is run once more, a validation.
    """

    number: int
    plan: Plan
    why: str  # a sentence
    deadline_seconds: float  # from `at` on; past it the trial is ended
    at: float
    forecast: PlanForecast | None = None  # None where nothing could be forecast by then
    validation: bool = False
    ask_seconds: float | None = None
    retry_of: int | None = None  # the trial of the same plan that was cut short


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """An outcome, of a trial or of a validation, came back and was told to the study.

    `waited_seconds` is from when it was handed out until its workers were ready for it: room was
    found, and workers started where there were none. None where nobody lived to tell.
    """

    record: Record
    at: float
    waited_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something that a person should read: a group was replaced, a throttled device, ..."""

    text: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEnded:
    """No more trials; `reason` is a sentence.

    `left` is how much faster than the best any plan that was not tried is at most: rate over rate,
    with 95 %, by what the search has learned; None if it cannot tell. `untried` is how many
    those plans are.
    """

    reason: str
    at: float
    left: float | None = None
    untried: int = 0


Event = SweepStarted | GroupStarted | TrialStarted | TrialEnded | Noted | SweepEnded
