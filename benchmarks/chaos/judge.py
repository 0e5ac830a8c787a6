"""What a sweep is found guilty of, from its study, the workers' journal and what was injected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from orchestrator.core.records import Record
from search_spaces.trial import Measured, TimedOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A finished measurement, as rank 0 wrote it down."""

    number: int
    plan: str  # its key
    validation: bool
    samples_per_second: float
    at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that was injected; times are seconds since the epoch."""

    kind: str
    at: float
    ends: bool  # whether it may end a process that a result passes through


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Sentences, one for each thing that is wrong."""

    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    invented: tuple[str, ...]
    unexplained: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.duplicated or self.invented or self.unexplained)


EARLY_SECONDS = 15.0  # that a result may be on its way, past whatever is stopped or locked
LATE_SECONDS = 60.0  # how long after a fault an outcome may follow from it, beyond its deadline


def judge(
    records: Sequence[Record],
    journal: Sequence[Line],
    injected: Sequence[Injected],
    began: Mapping[int, float] = MappingProxyType({}),
) -> Verdict:
    """Holds a study against the workers' journal, trial by trial.

    A measurement that came to its end is lost if the study has none of its trial. One that passed
    through a process which was ended at that moment was never known to the sweep, which runs the
    trial again: so many may be missing as such faults lie near. A trial that came to its end after
    its deadline is not lost either.

    Args:
        records: The study's trials that have an outcome; no validations.
        journal: All that workers finished.
        injected: The faults, in their order.
        began: When trials began, as far as it is known; else as their records say.
    """
    trials = [line for line in journal if not line.validation]
    by_number = {record.number: record for record in records}
    return Verdict(
        lost=tuple(_lost(trials, by_number, injected)),
        duplicated=tuple(
            f"plan {key} has {count} outcomes"
            for key, count in Counter(record.plan.key for record in records).items()
            if count > 1
        ),
        invented=tuple(
            f"no worker measured trial {record.number} at"
            f" {record.outcome.samples_per_second.value:g} samples/s"
            for record in records
            if isinstance(record.outcome, Measured) and not _is_in(record, trials)
        ),
        unexplained=tuple(
            f"trial {record.number} ended as {record.outcome.kind}, and no fault was injected"
            for record in records
            if not isinstance(record.outcome, Measured)
            and not _has_fault(record, injected, began.get(record.number, record.started_at))
        ),
    )


def beginnings(log: Iterable[str]) -> dict[int, float]:
    """When each trial began, by the drivers' events: one that another driver closes keeps no time.

    Args:
        log: What drivers have said, their events as lines of JSON among it.
    """
    found: dict[int, float] = {}
    for line in log:
        if line.startswith("{") and '"event":"trial_started"' in line:
            event = json.loads(line)
            at = datetime.fromisoformat(event["time"]).timestamp()
            found.setdefault(event["trial"], at)
    return found


def obeyed(orders: Path) -> list[Injected]:
    """The orders that a rank took, as faults of the moment when it did.

    That may be long after they were given: the group that was meant may be gone by then.
    """
    # a rename leaves what was written as old as it is, and counts as a change of the file
    return [
        Injected(kind=file.stem.partition("-")[0], at=file.stat().st_ctime, ends=False)
        for file in orders.glob("*.taken")
    ]


def _lost(
    trials: Sequence[Line], by_number: dict[int, Record], injected: Sequence[Injected]
) -> list[str]:
    told, used = [], set[int]()
    for line in trials:
        record = by_number.get(line.number)
        if record is not None and isinstance(record.outcome, Measured | TimedOut):
            continue
        near = next(
            (
                index
                for index, fault in enumerate(injected)
                if fault.ends
                and index not in used
                and -EARLY_SECONDS < line.at - fault.at < LATE_SECONDS
            ),
            None,
        )
        if near is None:
            told.append(f"trial {line.number} was measured, and the study has no outcome of it")
        else:
            used.add(near)
    return told


def _is_in(record: Record, trials: Sequence[Line]) -> bool:
    assert isinstance(record.outcome, Measured)
    rate = record.outcome.samples_per_second.value
    return any(line.number == record.number and line.samples_per_second == rate for line in trials)


def _has_fault(record: Record, injected: Sequence[Injected], began: float) -> bool:
    first = min(began, record.started_at) - LATE_SECONDS
    return any(first <= fault.at <= record.ended_at for fault in injected)
