"""Two trials of one study beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.comparing.measured import Measurement, measurement, peaks_apart, rates_apart
from orchestrator.core.state import SweepState
from orchestrator.explaining.fate import trial_named
from orchestrator.report.tables import anatomy_rows
from orchestrator.view.figures import speedup
from search_spaces.estimate import Estimate
from search_spaces.neighbours import differing_knobs
from search_spaces.outcome import Measured
from search_spaces.record import Record

PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """Something that is not the same on the two sides.

    `follows` says of a knob that it differs only since another one does.
    """

    name: str
    first: Any
    second: Any
    follows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansCompared:
    """Two trials of a study.

    `ratio` is the second's speed over the first's; `rates_apart` and `peaks_apart` say whether
    they differ beyond noise, None where nobody can say. `phases` are seconds of a step and
    `anatomy` bytes at the peak, as both were measured.
    """

    study: str
    first: Measurement
    second: Measurement
    knobs: tuple[Differing, ...]
    ratio: Estimate | None
    rates_apart: bool | None
    peaks_apart: bool | None
    phases: tuple[Differing, ...]
    anatomy: tuple[Differing, ...]


def plans_compared(state: SweepState, numbers: tuple[int, int]) -> PlansCompared:
    """Two trials of a study beside each other.

    Raises:
        StudyError: If there is no such trial.
    """
    first, second = (trial_named(state, number) for number in numbers)
    return PlansCompared(
        study=state.study,
        first=measurement(first, state),
        second=measurement(second, state),
        knobs=tuple(_knobs(first, second)),
        ratio=speedup(second, first),
        rates_apart=rates_apart(first, second),
        peaks_apart=peaks_apart(first, second),
        phases=tuple(_phases(first, second)),
        anatomy=tuple(_anatomy(first, second)),
    )


def _knobs(first: Record, second: Record) -> Iterator[Differing]:
    """Those that differ by themselves, then those that follow."""
    ours, theirs = first.plan.as_dict(), second.plan.as_dict()
    own = differing_knobs(first.plan, second.plan)
    rest = [name for name in ours if ours[name] != theirs[name] and name not in own]
    for name in (*own, *rest):
        yield Differing(name=name, first=ours[name], second=theirs[name], follows=name not in own)


def _phases(first: Record, second: Record) -> Iterator[Differing]:
    ours, theirs = first.outcome, second.outcome
    if isinstance(ours, Measured) and isinstance(theirs, Measured):
        for name in PHASES:
            yield Differing(
                name=name, first=getattr(ours.phases, name), second=getattr(theirs.phases, name)
            )


def _anatomy(first: Record, second: Record) -> Iterator[Differing]:
    ours, theirs = first.outcome, second.outcome
    if isinstance(ours, Measured) and isinstance(theirs, Measured):
        there = dict(anatomy_rows(theirs.memory.anatomy))
        for name, held in anatomy_rows(ours.memory.anatomy):
            if name in there:
                yield Differing(name=name, first=held, second=there[name])
