"""Verdict on a sweep: each attempt of a plan is followed by its number, from hand to hand.

An attempt is *handed out* (`trial_started`), *finished* (a worker's own journal), *acknowledged*
(`trial_ended`) and *stored* (a record of the study). A fault strikes attempts by their numbers:
those that were under way, and, if it ends a process, the next one, which may be given to what is
left of it. Nothing is excused since it happened about the same time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.records import Record
from orchestrator.core.repeats import is_repeat
from search_spaces.trial import Crashed, Measured

# faults that end a process, or stop it for good: the attempt runs once more, then is blamed
ENDS = frozenset(
    (
        *("rank_killed", "rank_stopped", "actor_killed", "actor_stopped"),
        *("head_killed", "head_stopped", "raylet_stopped"),
        *("temporary_disk_full", "shared_memory_full", "no_inodes"),  # a rank ends as well
        *("driver_killed", "driver_ended", "few_descriptors", "power_lost", "postgres_restored"),
        "hog",
    )
)
# outcomes that one fault explains, with the cause of a crash
_PAUSES = (
    *("driver_stopped", "sqlite_locked", "postgres_restarted", "postgres_hangs", "disk_full"),
    *("postgres_fails_over", "disk_slow", "disk_fails", "rank_slowed", "head_stopped"),
    "raylet_stopped",
)
_AT_ONCE: Mapping[str, frozenset[str]] = {
    "nan": frozenset({"diverged"}),
    "oom": frozenset({"out_of_memory"}),
    "hog": frozenset({"out_of_memory", "timed_out"}),
    "loop": frozenset({"timed_out"}),
    "raise": frozenset({"crashed exception"}),
    **dict.fromkeys(("rank_stopped", "actor_stopped", *_PAUSES), frozenset({"timed_out"})),
    "disk_full": frozenset({"timed_out", "crashed disk_full"}),
}
_CANCELLED = "cancelled"  # an attempt that was cut short; another one follows
_DEATHS = ("worker_died", "collective", "device_error", "driver_lost", "start_failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A finished measurement, as rank 0 wrote it down."""

    number: int
    plan: str  # its key
    validation: bool
    samples_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that was injected, and the attempts that it struck, by number."""

    kind: str
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Sentences, one for each thing that is wrong."""

    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    invented: tuple[str, ...]
    unexplained: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """True if nothing is wrong."""
        return not (self.lost or self.duplicated or self.invented or self.unexplained)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that is known of a sweep's attempts.

    Attributes:
        events: What its drivers said, in order, as they print it.
        journal: All that workers finished.
        records: The study's trials that have an outcome; no validations.
        injected: The faults.
    """

    events: Sequence[Mapping[str, Any]]
    journal: Sequence[Line]
    records: Sequence[Record]
    injected: Sequence[Injected]


def judge(history: History) -> Verdict:
    """Follows each attempt from hand to hand."""
    case = _Case(history)
    return Verdict(
        lost=tuple(case.lost()),
        duplicated=tuple(case.duplicated()),
        invented=tuple(case.invented()),
        unexplained=tuple(case.unexplained()),
    )


def under_way(events: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Returns the attempts that have been handed out, and whose end has not been told."""
    found: dict[int, None] = {}
    for event in events:
        if event["event"] == "sweep_started":
            found.clear()  # another driver: nothing is under way with it
        elif event["event"] == "trial_started":
            found[event["trial"]] = None
        elif event["event"] == "trial_ended":
            found.pop(event["trial"], None)
    return tuple(found)


def struck(events: Sequence[Mapping[str, Any]], kind: str, first: int, last: int) -> Injected:
    """Returns a fault with the attempts that it struck.

    Args:
        events: All that drivers said.
        kind: The fault.
        first: How many events there were when it began.
        last: How many there were when it was over.
    """
    later = [event["trial"] for event in events[first:] if event["event"] == "trial_started"]
    meanwhile = sum(event["event"] == "trial_started" for event in events[first:last])
    count = meanwhile + (kind in ENDS)
    return Injected(kind=kind, attempts=(*under_way(events[:first]), *later[:count]))


def obeyed(orders: Path) -> list[Injected]:
    """Returns the orders that ranks took, each with the attempt that took it."""
    return [
        Injected(kind=file.stem.partition("-")[0], attempts=(int(file.read_text()),))
        for file in orders.glob("*.taken")
    ]


class _Case:
    def __init__(self, history: History) -> None:
        started = [event for event in history.events if event["event"] == "trial_started"]
        self._plans = {event["trial"]: event["plan_key"] for event in started}  # handed out
        self._finished = {line.number: line for line in history.journal if not line.validation}
        self._runs = Counter(line.number for line in history.journal if not line.validation)
        self._acknowledged = {
            event["trial"]: event
            for event in history.events
            if event["event"] == "trial_ended" and event["outcome"] != _CANCELLED
        }
        self._records = history.records
        self._stored = {record.number: record for record in history.records}
        self._struck: dict[int, list[Injected]] = {}
        for fault in history.injected:
            for number in fault.attempts:
                self._struck.setdefault(number, []).append(fault)

    def lost(self) -> Iterator[str]:
        for number, event in self._acknowledged.items():
            if number not in self._stored:
                yield f"trial {number} was acknowledged as {event['outcome']}, and is not stored"
        for number, line in self._finished.items():
            if number in self._stored or number in self._acknowledged:
                continue
            again = any(
                record.plan.key == line.plan and record.number > number for record in self._records
            )
            if not (again and self._ended(number)):
                yield f"trial {number} was measured, and the study has no outcome of it"

    def duplicated(self) -> Iterator[str]:
        first = [record for record in self._records if not is_repeat(record)]
        for key, count in Counter(record.plan.key for record in first).items():
            if count > 1:
                yield f"plan {key} has {count} outcomes"
        for number, count in self._runs.items():
            if count > 1:
                yield f"trial {number} was run {count} times"

    def invented(self) -> Iterator[str]:
        for record in self._records:
            number = record.number
            if number not in self._plans:
                yield f"trial {number} is stored, and was never handed out"
            if isinstance(record.outcome, Measured):
                rate = record.outcome.samples_per_second.value
                line = self._finished.get(number)
                if line is None or line.samples_per_second != rate:
                    yield f"no worker measured trial {number} at {rate:g} samples/s"
            told = self._acknowledged.get(number)
            if told is not None and told["outcome"] != record.outcome.kind:
                yield (
                    f"trial {number} was acknowledged as {told['outcome']}, and is stored as"
                    f" {record.outcome.kind}"
                )

    def unexplained(self) -> Iterator[str]:
        for record in self._records:
            if not isinstance(record.outcome, Measured) and not self._is_explained(record):
                yield f"trial {record.number} ended as {_word(record)}, and no fault explains it"

    def _is_explained(self, record: Record) -> bool:
        number, outcome = record.number, record.outcome
        if isinstance(outcome, Crashed) and outcome.cause in _DEATHS:
            # the second death of a plan's processes counts against it; one fault is one death
            same = [one for one, plan in self._plans.items() if plan == record.plan.key]
            before = max((one for one in same if one < number), default=-1)
            return any(
                first is not second
                for first in self._ended(before)
                for second in self._ended(number)
            )
        struck_by = self._struck.get(number, ())
        return any(_word(record) in _AT_ONCE.get(fault.kind, ()) for fault in struck_by)

    def _ended(self, number: int) -> list[Injected]:
        """Returns the faults that may have ended an attempt."""
        return [fault for fault in self._struck.get(number, ()) if fault.kind in ENDS]


def _word(record: Record) -> str:
    outcome = record.outcome
    return f"crashed {outcome.cause}" if isinstance(outcome, Crashed) else outcome.kind
