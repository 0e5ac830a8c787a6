"""Two studies beside each other: of two machines, of two versions, of two specifications."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import kendalltau

from orchestrator.comparing.measured import Measurement, measurement, peaks_apart, rates_apart
from orchestrator.comparing.plans import Differing
from orchestrator.core.objective import counts
from orchestrator.core.state import SweepState
from orchestrator.view.figures import quotient
from search_spaces.estimate import Estimate
from search_spaces.neighbours import differing_knobs
from search_spaces.outcome import Measured
from search_spaces.plan import Plan
from search_spaces.record import Fingerprint, Record
from search_spaces.spec.addresses import without_password
from search_spaces.spec.load import ADDRESSES
from search_spaces.spec.schema import GIB

_FEWEST = 3  # plans whose order says anything
_SUBJECT = ("model", "data", "train")
_PLACES = ("study.name", "study.folder", "study.storage")  # where it lies changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the studies, in figures."""

    study: str
    trials: int
    ended: tuple[tuple[str, int], ...]  # how many trials ended in which way
    device: str
    best: Measurement | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plan that both studies tried; `ratio` is the second's speed over the first's."""

    plan: Plan
    first: Measurement
    second: Measurement
    ratio: Estimate | None
    rates_apart: bool | None
    peaks_apart: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How the plans that both have measured compare.

    `tau` is Kendall's rank correlation of their speeds, 1 for the same order, -1 for the reverse,
    and `chance` the probability of one so far from 0 if orders had nothing to do with each other;
    None of fewer than three plans, or where all are equally fast. Ratios are medians, the second
    over the first.
    """

    plans: int
    ratio: float
    slowest: float
    fastest: float
    peak_ratio: float | None
    apart: int  # plans whose speeds differ beyond noise
    tau: float | None
    chance: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiesCompared:
    """Two studies.

    `same_job` says whether model, data and training are one: otherwise speeds do not compare.
    `winners` are the knobs in which the answers differ, and `ratio` the second answer's speed over
    the first's.
    """

    first: Side
    second: Side
    same_job: bool
    specification: tuple[Differing, ...]
    environment: tuple[Differing, ...]
    winners: tuple[Differing, ...]
    ratio: Estimate | None
    rates_apart: bool | None
    pairs: tuple[Pair, ...]
    agreement: Agreement | None
    only_first: int
    only_second: int


def studies_compared(
    first: SweepState, second: SweepState, notes: tuple[str, str] = ("", "")
) -> StudiesCompared:
    """Two studies beside each other; `notes` is what to say of each."""
    pairs = tuple(_pairs(first, second))
    ours, theirs = first.best, second.best
    specification = tuple(
        _keys(first.spec.model_dump(mode="json"), second.spec.model_dump(mode="json"))
    )
    plans = [{record.plan for record in state.records} for state in (first, second)]
    return StudiesCompared(
        first=_side(first, notes[0]),
        second=_side(second, notes[1]),
        same_job=not any(key.name.split(".")[0] in _SUBJECT for key in specification),
        specification=specification,
        environment=tuple(_environment(_fingerprint(first), _fingerprint(second))),
        winners=() if ours is None or theirs is None else tuple(_knobs(ours.plan, theirs.plan)),
        ratio=_ratio(theirs, ours),
        rates_apart=None if ours is None or theirs is None else rates_apart(ours, theirs),
        pairs=pairs,
        agreement=_agreement(pairs),
        only_first=len(plans[0] - plans[1]),
        only_second=len(plans[1] - plans[0]),
    )


def _side(state: SweepState, note: str) -> Side:
    seen = _fingerprint(state)
    return Side(
        study=state.study,
        trials=len(state.records),
        ended=tuple(counts(state.records).items()),
        device="" if seen is None else f"{seen.device} {seen.device_name}",
        best=None if state.best is None else measurement(state.best, state),
        note=note,
    )


def _pairs(first: SweepState, second: SweepState) -> Iterator[Pair]:
    """Plans that both have, the fastest of the first study first, what it did not measure last."""
    ours, theirs = _by_plan(first.records), _by_plan(second.records)
    common = [plan for plan in ours if plan in theirs]
    for plan in sorted(common, key=lambda plan: -_rate(ours[plan])):
        one, other = ours[plan], theirs[plan]
        yield Pair(
            plan=plan,
            first=measurement(one, first),
            second=measurement(other, second),
            ratio=_ratio(other, one),
            rates_apart=rates_apart(one, other),
            peaks_apart=peaks_apart(one, other),
        )


def _by_plan(records: Sequence[Record]) -> dict[Plan, Record]:
    """The last record of each plan, a measured one before others."""
    order = sorted(records, key=lambda record: isinstance(record.outcome, Measured))
    return {record.plan: record for record in order}


def _rate(record: Record) -> float:
    outcome = record.outcome
    return outcome.samples_per_second.value if isinstance(outcome, Measured) else 0.0


def _agreement(pairs: Sequence[Pair]) -> Agreement | None:
    both = [pair for pair in pairs if pair.ratio is not None]
    if not both:
        return None
    ratios = [pair.ratio.value for pair in both if pair.ratio is not None]
    tau, chance = _tau(both)
    peaks = [
        pair.second.peak_bytes / pair.first.peak_bytes
        for pair in both
        if pair.first.peak_bytes and pair.second.peak_bytes
    ]
    return Agreement(
        plans=len(both),
        ratio=statistics.median(ratios),
        slowest=min(ratios),
        fastest=max(ratios),
        peak_ratio=statistics.median(peaks) if peaks else None,
        apart=sum(pair.rates_apart is True for pair in both),
        tau=tau,
        chance=chance,
    )


def _tau(pairs: Sequence[Pair]) -> tuple[float | None, float | None]:
    rates = [
        (pair.first.samples_per_second.value, pair.second.samples_per_second.value)
        for pair in pairs
        if pair.first.samples_per_second and pair.second.samples_per_second
    ]
    columns = list(zip(*rates, strict=True))
    if len(rates) < _FEWEST or any(len(set(column)) == 1 for column in columns):
        return None, None
    found = kendalltau(*columns)
    return float(found.statistic), float(found.pvalue)


def _ratio(above: Record | None, below: Record | None) -> Estimate | None:
    """Of two trials, which may be of one plan on two machines."""
    if above is None or below is None:
        return None
    ours, theirs = above.outcome, below.outcome
    if not (isinstance(ours, Measured) and isinstance(theirs, Measured)):
        return None
    return quotient(ours.samples_per_second, theirs.samples_per_second)


def _knobs(first: Plan, second: Plan) -> Iterator[Differing]:
    for name in differing_knobs(first, second):
        yield Differing(name=name, first=getattr(first, name), second=getattr(second, name))


def _keys(
    first: Mapping[str, Any], second: Mapping[str, Any], path: str = ""
) -> Iterator[Differing]:
    """Keys of two specifications that differ; passwords in addresses are not told."""
    for key in {**first, **second}:
        ours, theirs = first.get(key), second.get(key)
        if ours == theirs:
            continue
        name = f"{path}{key}"
        if name in _PLACES:
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _keys(ours, theirs, f"{name}.")
        elif tuple(name.split(".")) in ADDRESSES:
            yield Differing(name=name, first=_address(ours), second=_address(theirs))
        else:
            yield Differing(name=name, first=ours, second=theirs)


def _address(told: str | None) -> str | None:
    return None if told is None else without_password(told)


def _fingerprint(state: SweepState) -> Fingerprint | None:
    told = (record.fingerprint for record in reversed(state.records))
    return next((one for one in told if one is not None), state.fingerprint)


def _environment(first: Fingerprint | None, second: Fingerprint | None) -> Iterator[Differing]:
    """Hardware and software that differ; what is missing on one side is None."""
    ours, theirs = _facts(first), _facts(second)
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            yield Differing(name=name, first=ours.get(name), second=theirs.get(name))


def _facts(seen: Fingerprint | None) -> dict[str, Any]:
    if seen is None:
        return {}
    return {
        "device": seen.device,
        "device_name": seen.device_name,
        "device_memory_gib": round(seen.device_memory_bytes / GIB, 3),
        "hosts": seen.hosts,
        "python": seen.python,
        **dict(seen.versions),
    }
