"""Notes for the user on events of a sweep, as values; `report.reasons` puts them into words."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import PurePath

from orchestrator.core.fingerprints import Difference
from orchestrator.core.placement import Node
from orchestrator.core.reasons import ReplacementReason
from search_spaces.trial import NodesLost, NoRoom

_JOB_FOLDER = "runtime_resources"  # of a Ray session, where working directories are unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that a library, a host or a storage produced."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRemoved:
    """The study is in a folder that Ray removes some time after the job."""

    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesUnused:
    """Nodes are not used, since they have other GPUs."""

    kinds: tuple[str, ...]  # of each node


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFull:
    """The head node lacks memory for as many groups as the specification asks for."""

    groups: int
    room: int  # for so many groups


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


StartNote = StudyRemoved | NodesUnused | HeadFull  # before the first trial
TrialNote = GroupReplaced | PlanBlamed | TrialWaits
SearchNote = ForecastsEnded | TrialsTransferred | FingerprintsDiffer
Note = Message | StartNote | TrialNote | SearchNote


def start_notes(
    folder: PurePath | None, groups: int, room: int, nodes: Set[Node], all_nodes: Set[Node]
) -> Iterator[StartNote]:
    """Yields notes on a study that Ray will remove, unused nodes, and a head node that is full.

    `folder` is the study's, None if a database holds it; the head node has room for `room` groups.
    """
    if folder is not None and _JOB_FOLDER in folder.parts:
        yield StudyRemoved(folder=str(folder))
    if unused := all_nodes - nodes:
        yield NodesUnused(kinds=tuple(sorted(node.kind for node in unused)))
    if groups > room:
        yield HeadFull(groups=groups, room=room)
