"""A record: what was tried, on what, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.expectation import Expectation
from search_spaces.outcome import Outcome
from search_spaces.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Hardware and software that a measurement belongs to."""

    device: str  # "cpu" or "cuda"
    device_name: str
    device_memory_bytes: int
    hosts: int
    python: str
    versions: tuple[tuple[str, str], ...]  # package, version; sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished trial of a study, or the proof of the plan of trial `number`."""

    number: int
    plan: Plan
    outcome: Outcome
    why: str  # the sentence with which the plan was asked for
    started_at: float  # seconds since the epoch
    ended_at: float
    fingerprint: Fingerprint | None
    forecast: Expectation | None = None  # None where nothing could be forecast
    proof: bool = False


def closed(number: int, plan: Plan, outcome: Outcome, why: str, *, at: float) -> Record:
    """The record of a trial that somebody else than its workers closed."""
    return Record(
        number=number,
        plan=plan,
        outcome=outcome,
        why=why,
        started_at=at,
        ended_at=at,
        fingerprint=None,
    )
