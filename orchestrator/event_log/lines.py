"""What a line says: a flat value for each kind of event, with names that stay.

A field that is added later leaves `VERSION` as it is; one that goes, or means something else, makes
a new one. Fields are described in docs/observability.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import AwareDatetime

from orchestrator.core.metrics import ProofState

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractLine:
    """What every line has: the schema's version, when it happened and in which study."""

    version: Literal[1] = 1
    time: AwareDatetime  # UTC
    study: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStartedLine(AbstractLine):
    """A driver took up the study."""

    event: Literal["sweep_started"] = "sweep_started"
    experiment: str
    model: str
    objective: str
    plans: int
    groups: int
    trials_before: int
    trials_budget: int
    minutes_budget: float
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStartedLine(AbstractLine):
    """Workers told what they run on."""

    event: Literal["group_started"] = "group_started"
    ranks: int
    hosts: int
    device: str
    device_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStartedLine(AbstractLine):
    """A trial, or a proof, was handed out."""

    event: Literal["trial_started"] = "trial_started"
    trial: int
    proof: bool
    plan: str
    plan_key: str
    ranks: int
    why: str
    deadline_seconds: float
    ask_seconds: float | None = None
    forecast_samples_per_second: float | None = None
    forecast_peak_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEndedLine(AbstractLine):
    """A trial, or a proof, ended."""

    event: Literal["trial_ended"] = "trial_ended"
    trial: int
    proof: bool
    plan_key: str
    outcome: str
    detail: str
    seconds: float
    waited_seconds: float | None = None
    samples_per_second: float | None = None
    samples_per_second_low: float | None = None
    samples_per_second_high: float | None = None
    peak_bytes: int | None = None
    wanted_bytes: int | None = None
    limit_bytes: int | None = None
    trials: int
    best_trial: int | None = None
    best_samples_per_second: float | None = None
    best_plan: str | None = None
    best_plan_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedLine(AbstractLine):
    """Something that a person should read."""

    event: Literal["noted"] = "noted"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEndedLine(AbstractLine):
    """No more trials."""

    event: Literal["sweep_ended"] = "sweep_ended"
    reason: str
    trials: int
    untried: int
    left: float | None = None
    best_trial: int | None = None
    best_samples_per_second: float | None = None
    best_plan: str | None = None
    best_plan_key: str | None = None
    proof: ProofState


Line = (
    SweepStartedLine
    | GroupStartedLine
    | TrialStartedLine
    | TrialEndedLine
    | NotedLine
    | SweepEndedLine
)
