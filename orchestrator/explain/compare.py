"""Two studies beside each other: of two machines, of two versions, of two specifications."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import kendalltau

from orchestrator.core.objective import PEAKS_APART, counts
from orchestrator.core.state import SweepState
from orchestrator.explain.trial import trial_named
from orchestrator.report.labels import KIND_WORDS, lossy_words, outcome_words
from orchestrator.report.sweep_tables import anatomy_rows, quotient, speedup
from search_spaces.plan import Plan
from search_spaces.plan_table import differing_knobs
from search_spaces.spec.load import ADDRESSES
from search_spaces.spec.redaction import without_password
from search_spaces.spec.schema import GIB
from search_spaces.trial import Estimate, Fingerprint, Measured, Record

PHASES = ("data", "forward", "backward", "optimizer")
_FEWEST = 3  # plans whose order says anything
_SUBJECT = ("model", "data", "train")
_PLACES = ("study.name", "study.folder", "study.storage")  # where it lies changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A trial of one side; what it did not measure is None. `wins` says that it is the answer."""

    trial: int
    plan: Plan
    lossy: str  # which knobs change the numerics, empty if none does
    kind: str  # how it ended, in a word or two
    outcome: str  # the same in a sentence
    samples_per_second: Estimate | None
    peak_bytes: int | None
    limit_bytes: int | None
    forecast: float | None  # samples per second, before the trial
    wins: bool


def measurement(record: Record, state: SweepState) -> Measurement:
    """What a trial of a study measured."""
    told = record.outcome if isinstance(record.outcome, Measured) else None
    expected = record.forecast
    return Measurement(
        trial=record.number,
        plan=record.plan,
        lossy=lossy_words(record.plan, state.spec),
        kind=KIND_WORDS[record.outcome.kind],
        outcome=outcome_words(record.outcome),
        samples_per_second=told.samples_per_second if told else None,
        peak_bytes=told.memory.peak_bytes if told else None,
        limit_bytes=told.memory.limit_bytes if told else None,
        forecast=expected.samples_per_second.value if expected else None,
        wins=record == state.best,
    )


def rates_apart(first: Record, second: Record) -> bool | None:
    """Whether two speeds differ beyond noise: their intervals lie apart, as equals are told."""
    ours, theirs = first.outcome, second.outcome
    if not (isinstance(ours, Measured) and isinstance(theirs, Measured)):
        return None
    return not ours.samples_per_second.overlaps(theirs.samples_per_second)


def peaks_apart(first: Record, second: Record) -> bool | None:
    """Whether two peaks differ by more than those of one plan from trial to trial."""
    ours, theirs = peak(first), peak(second)
    return None if ours is None or theirs is None else not ours.overlaps(theirs)


def peak(record: Record) -> Estimate | None:
    """A measured peak in bytes, with what peaks of one plan differ by."""
    if not isinstance(record.outcome, Measured):
        return None
    memory = record.outcome.memory
    noise = PEAKS_APART * memory.limit_bytes
    held = float(memory.peak_bytes)
    return Estimate(value=held, low=held - noise, high=held + noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same on the two sides.

    `follows` says of a knob that it differs only since another one does.
    """

    name: str
    first: Any
    second: Any
    follows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """Two trials of a study.

    `ratio` is the second's speed over the first's; `rates_apart` and `peaks_apart` say whether
    they differ beyond noise, None where nobody can say. `phases` are seconds of a step and
    `anatomy` bytes at the peak, as both were measured.
    """

    study: str
    first: Measurement
    second: Measurement
    knobs: tuple[Difference, ...]
    ratio: Estimate | None
    rates_apart: bool | None
    peaks_apart: bool | None
    phases: tuple[Difference, ...]
    anatomy: tuple[Difference, ...]


def compare_plans(state: SweepState, numbers: tuple[int, int]) -> PlanComparison:
    """Two trials of a study beside each other.

    Raises:
        StudyError: If there is no such trial.
    """
    first, second = (trial_named(state, number) for number in numbers)
    return PlanComparison(
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


def _knobs(first: Record, second: Record) -> Iterator[Difference]:
    """Those that differ by themselves, then those that follow."""
    ours, theirs = first.plan.as_dict(), second.plan.as_dict()
    own = differing_knobs(first.plan, second.plan)
    rest = [name for name in ours if ours[name] != theirs[name] and name not in own]
    for name in (*own, *rest):
        yield Difference(name=name, first=ours[name], second=theirs[name], follows=name not in own)


def _phases(first: Record, second: Record) -> Iterator[Difference]:
    ours, theirs = first.outcome, second.outcome
    if isinstance(ours, Measured) and isinstance(theirs, Measured):
        for name in PHASES:
            yield Difference(
                name=name, first=getattr(ours.phases, name), second=getattr(theirs.phases, name)
            )


def _anatomy(first: Record, second: Record) -> Iterator[Difference]:
    ours, theirs = first.outcome, second.outcome
    if isinstance(ours, Measured) and isinstance(theirs, Measured):
        there = dict(anatomy_rows(theirs.memory.anatomy))
        for name, held in anatomy_rows(ours.memory.anatomy):
            if name in there:
                yield Difference(name=name, first=held, second=there[name])


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
class StudyComparison:
    """Two studies.

    `same_job` says whether model, data and training are one: otherwise speeds do not compare.
    `winners` are the knobs in which the answers differ, and `ratio` the second answer's speed over
    the first's.
    """

    first: Side
    second: Side
    same_job: bool
    specification: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    winners: tuple[Difference, ...]
    ratio: Estimate | None
    rates_apart: bool | None
    pairs: tuple[Pair, ...]
    agreement: Agreement | None
    only_first: int
    only_second: int


def compare_studies(
    first: SweepState, second: SweepState, notes: tuple[str, str] = ("", "")
) -> StudyComparison:
    """Two studies beside each other; `notes` is what to say of each."""
    pairs = tuple(_pairs(first, second))
    ours, theirs = first.best, second.best
    specification = tuple(
        _keys(first.spec.model_dump(mode="json"), second.spec.model_dump(mode="json"))
    )
    plans = [{record.plan for record in state.records} for state in (first, second)]
    return StudyComparison(
        first=_side(first, notes[0]),
        second=_side(second, notes[1]),
        same_job=not any(key.name.split(".")[0] in _SUBJECT for key in specification),
        specification=specification,
        environment=tuple(_environment(_fingerprint(first), _fingerprint(second))),
        winners=()
        if ours is None or theirs is None
        else tuple(_other_knobs(ours.plan, theirs.plan)),
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


def _other_knobs(first: Plan, second: Plan) -> Iterator[Difference]:
    for name in differing_knobs(first, second):
        yield Difference(name=name, first=getattr(first, name), second=getattr(second, name))


def _keys(
    first: Mapping[str, Any], second: Mapping[str, Any], path: str = ""
) -> Iterator[Difference]:
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
            yield Difference(name=name, first=_address(ours), second=_address(theirs))
        else:
            yield Difference(name=name, first=ours, second=theirs)


def _address(told: str | None) -> str | None:
    return None if told is None else without_password(told)


def _fingerprint(state: SweepState) -> Fingerprint | None:
    told = (record.fingerprint for record in reversed(state.records))
    return next((one for one in told if one is not None), state.fingerprint)


def _environment(first: Fingerprint | None, second: Fingerprint | None) -> Iterator[Difference]:
    """Hardware and software that differ; what is missing on one side is None."""
    ours, theirs = _facts(first), _facts(second)
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            yield Difference(name=name, first=ours.get(name), second=theirs.get(name))


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
