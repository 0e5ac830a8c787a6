"""Notes for the user on events of a sweep, as values; `report.reasons` puts them into words."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.fingerprints import Difference
from orchestrator.core.reasons import ReplacementReason
from search_spaces.trial import NodesLost, NoRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that a library, a host or a storage produced."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReplaced:
    """The workers of a group are replaced."""

    reason: ReplacementReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBlamed:
    """Nodes were lost during a trial of a plan again, so the plan counts as failed."""

    trial: int
    loss: NodesLost


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWaits:
    """A trial waits for room, up to `room.minutes`."""

    trial: int
    room: NoRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastsEnded:
    """An error ended the forecasts; the sweep goes on without them."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsTransferred:
    """Trials of another study inform the search.

    Attributes:
        study: The other study.
        trials: Their number; 0 if the study ran on another device.
        std: Their added uncertainty, the largest standard deviation of logarithms.
        differences: Between their fingerprints and the workers'.
        hosts: Numbers of hosts there, where they differ.
    """

    study: str
    trials: int
    std: float = 0.0
    differences: tuple[Difference, ...] = ()
    hosts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintsDiffer:
    """Earlier trials of this study ran with other fingerprints than the workers that started."""

    trials: int
    differences: tuple[Difference, ...]


Note = (
    Message
    | GroupReplaced
    | PlanBlamed
    | TrialWaits
    | ForecastsEnded
    | TrialsTransferred
    | FingerprintsDiffer
)
