"""Comparison of two trials of a study, and of two studies."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.objective import (
    PEAK_NOISE_SHARE,
    outcome_counts,
    quotient,
    speedup,
    throughput,
)
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.trial import trial_named
from search_spaces.knobs.registry import lossy_knobs
from search_spaces.plan import Plan
from search_spaces.plan_table import differing_knobs
from search_spaces.spec.load import ADDRESS_KEYS
from search_spaces.spec.redaction import without_password
from search_spaces.spec.schema import GIB
from search_spaces.trial import Estimate, Fingerprint, Measured, Outcome

HELD_BY_ALLOCATOR = (
    "weights",
    "gradients",
    "optimizer_states",
    "activations",
    "fragmentation",
)
PHASES = ("data", "forward", "backward", "optimizer")
_LEAST_PLANS = 3  # fewer have no meaningful rank correlation
_JOB_SECTIONS = ("model", "data", "train")
_LOCATIONS = ("study.name", "study.folder", "study.storage")  # they change no measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A trial of one side; fields that it did not measure are None."""

    trial: int
    plan: Plan
    lossy: tuple[str, ...]  # knobs that change the numerics
    outcome: Outcome
    samples_per_second: Estimate | None
    peak_bytes: int | None
    limit_bytes: int | None
    forecast: float | None  # samples per second, from before the trial
    is_best: bool  # of its study


def measurement(record: Record, state: SweepState) -> Measurement:
    """Returns the measurements of a trial."""
    measured = record.outcome if isinstance(record.outcome, Measured) else None
    forecast = record.forecast
    return Measurement(
        trial=record.number,
        plan=record.plan,
        lossy=lossy_knobs(record.plan, state.spec),
        outcome=record.outcome,
        samples_per_second=measured.samples_per_second if measured else None,
        peak_bytes=measured.memory.peak_bytes if measured else None,
        limit_bytes=measured.memory.limit_bytes if measured else None,
        forecast=forecast.samples_per_second.value if forecast else None,
        is_best=state.best is not None and record.number == state.best.number,
    )


def speeds_differ(first: Record, second: Record) -> bool | None:
    """Returns True if two speeds differ beyond noise; None if one was not measured.

    They do if their confidence intervals do not overlap, the test for statistically equal plans.
    """
    one, other = first.outcome, second.outcome
    if not (isinstance(one, Measured) and isinstance(other, Measured)):
        return None
    return not one.samples_per_second.overlaps(other.samples_per_second)


def peaks_differ(first: Record, second: Record) -> bool | None:
    """Returns True if two peaks differ beyond run-to-run noise; None if one was not measured."""
    one, other = peak(first), peak(second)
    return None if one is None or other is None else not one.overlaps(other)


def peak(record: Record) -> Estimate | None:
    """Returns a measured peak in bytes, with the run-to-run noise as its interval."""
    if not isinstance(record.outcome, Measured):
        return None
    memory = record.outcome.memory
    noise_bytes = PEAK_NOISE_SHARE * memory.limit_bytes
    peak_bytes = float(memory.peak_bytes)
    return Estimate(value=peak_bytes, low=peak_bytes - noise_bytes, high=peak_bytes + noise_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that differs between the two sides.

    `follows` is True for a knob that differs only because another knob does.
    """

    name: str
    first: Any
    second: Any
    follows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """Two trials of a study.

    Attributes:
        ratio: Speed of the second over that of the first.
        speeds_differ: True if speeds differ beyond noise; None if that is unknown.
        peaks_differ: True if peaks differ beyond noise; None if that is unknown.
        phases: Measured seconds of a step.
        anatomy: Measured bytes at the peak.
    """

    study: str
    first: Measurement
    second: Measurement
    knobs: tuple[Difference, ...]
    ratio: Estimate | None
    speeds_differ: bool | None
    peaks_differ: bool | None
    phases: tuple[Difference, ...]
    anatomy: tuple[Difference, ...]


def compare_plans(state: SweepState, numbers: tuple[int, int]) -> PlanComparison:
    """Compares two trials of a study.

    Raises:
        StudyError: If a trial does not exist.
    """
    first, second = (trial_named(state, number) for number in numbers)
    return PlanComparison(
        study=state.study,
        first=measurement(first, state),
        second=measurement(second, state),
        knobs=tuple(_knobs(first, second)),
        ratio=speedup(second, first),
        speeds_differ=speeds_differ(first, second),
        peaks_differ=peaks_differ(first, second),
        phases=tuple(_phases(first, second)),
        anatomy=tuple(_anatomy(first, second)),
    )


def _knobs(first: Record, second: Record) -> Iterator[Difference]:
    """Yields the knobs that differ by themselves, then those that follow from them."""
    knobs, other_knobs = first.plan.as_dict(), second.plan.as_dict()
    own = differing_knobs(first.plan, second.plan)
    following = [name for name in knobs if knobs[name] != other_knobs[name] and name not in own]
    for name in (*own, *following):
        yield Difference(
            name=name, first=knobs[name], second=other_knobs[name], follows=name not in own
        )


def _phases(first: Record, second: Record) -> Iterator[Difference]:
    one, other = first.outcome, second.outcome
    if isinstance(one, Measured) and isinstance(other, Measured):
        for name in PHASES:
            yield Difference(
                name=name, first=getattr(one.phases, name), second=getattr(other.phases, name)
            )


def _anatomy(first: Record, second: Record) -> Iterator[Difference]:
    one, other = first.outcome, second.outcome
    if isinstance(one, Measured) and isinstance(other, Measured):
        for name in HELD_BY_ALLOCATOR:
            sizes = getattr(one.memory.anatomy, name), getattr(other.memory.anatomy, name)
            if None not in sizes:
                yield Difference(name=name, first=sizes[0], second=sizes[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Summary of one of the studies."""

    study: str
    trials: int
    outcomes: tuple[tuple[str, int], ...]  # number of trials by kind of outcome
    device: str
    best: Measurement | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plan that both studies tried; `ratio` is its speed in the second over the first."""

    plan: Plan
    first: Measurement
    second: Measurement
    ratio: Estimate | None
    speeds_differ: bool | None
    peaks_differ: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of two studies on the plans that both measured.

    Attributes:
        plans: Number of plans.
        ratio: Median speed ratio, second over first; `slowest` and `fastest` are its extremes.
        peak_ratio: Median ratio of peaks, second over first.
        tau: Kendall's rank correlation of speeds: 1 for the same order, -1 for the reverse. None
            for fewer than three plans, or if all are equally fast.
        p_value: p-value of `tau` under independent orders.
    """

    plans: int
    ratio: float
    slowest: float
    fastest: float
    peak_ratio: float | None
    differing: int  # plans whose speeds differ beyond noise
    tau: float | None
    p_value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyComparison:
    """Two studies.

    Attributes:
        same_job: True if model, data and training are the same; else speeds are not comparable.
        best_plans: Knobs in which the best plans differ.
        ratio: Speed of the second best plan over that of the first.
    """

    first: Side
    second: Side
    same_job: bool
    specification: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    best_plans: tuple[Difference, ...]
    ratio: Estimate | None
    speeds_differ: bool | None
    pairs: tuple[Pair, ...]
    agreement: Agreement | None
    only_first: int
    only_second: int


def compare_studies(
    first: SweepState, second: SweepState, notes: tuple[str, str] = ("", "")
) -> StudyComparison:
    """Compares two studies; `notes` has a note on each, or empty strings."""
    pairs = tuple(_pairs(first, second))
    first_best, second_best = first.best, second.best
    specification = tuple(
        _keys(first.spec.model_dump(mode="json"), second.spec.model_dump(mode="json"))
    )
    plans = [{record.plan for record in state.records} for state in (first, second)]
    return StudyComparison(
        first=_side(first, notes[0]),
        second=_side(second, notes[1]),
        same_job=not any(key.name.split(".")[0] in _JOB_SECTIONS for key in specification),
        specification=specification,
        environment=tuple(_environment(first.last_fingerprint, second.last_fingerprint)),
        best_plans=()
        if first_best is None or second_best is None
        else tuple(_other_knobs(first_best.plan, second_best.plan)),
        ratio=_ratio(second_best, first_best),
        speeds_differ=None
        if first_best is None or second_best is None
        else speeds_differ(first_best, second_best),
        pairs=pairs,
        agreement=_agreement(pairs),
        only_first=len(plans[0] - plans[1]),
        only_second=len(plans[1] - plans[0]),
    )


def _side(state: SweepState, note: str) -> Side:
    fingerprint = state.last_fingerprint
    return Side(
        study=state.study,
        trials=len(state.records),
        outcomes=tuple(outcome_counts(state.records).items()),
        device="" if fingerprint is None else f"{fingerprint.device} {fingerprint.device_name}",
        best=None if state.best is None else measurement(state.best, state),
        note=note,
    )


def _pairs(first: SweepState, second: SweepState) -> Iterator[Pair]:
    """Yields plans that both tried, by speed in the first study; unmeasured ones come last."""
    first_records, second_records = _by_plan(first.records), _by_plan(second.records)
    common = [plan for plan in first_records if plan in second_records]
    for plan in sorted(common, key=lambda plan: -throughput(first_records[plan])):
        one, other = first_records[plan], second_records[plan]
        yield Pair(
            plan=plan,
            first=measurement(one, first),
            second=measurement(other, second),
            ratio=_ratio(other, one),
            speeds_differ=speeds_differ(one, other),
            peaks_differ=peaks_differ(one, other),
        )


def _by_plan(records: Sequence[Record]) -> dict[Plan, Record]:
    # the last one wins: of the measured records, or of all if none measured the plan
    measured_last = sorted(records, key=lambda record: isinstance(record.outcome, Measured))
    return {record.plan: record for record in measured_last}


def _agreement(pairs: Sequence[Pair]) -> Agreement | None:
    both = [pair for pair in pairs if pair.ratio is not None]
    if not both:
        return None
    ratios = [pair.ratio.value for pair in both if pair.ratio is not None]
    tau, p_value = _tau(both)
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
        differing=sum(pair.speeds_differ is True for pair in both),
        tau=tau,
        p_value=p_value,
    )


def _tau(pairs: Sequence[Pair]) -> tuple[float | None, float | None]:
    rates = [
        (pair.first.samples_per_second.value, pair.second.samples_per_second.value)
        for pair in pairs
        if pair.first.samples_per_second and pair.second.samples_per_second
    ]
    columns = list(zip(*rates, strict=True))
    if len(rates) < _LEAST_PLANS or any(len(set(column)) == 1 for column in columns):
        return None, None
    from scipy.stats import kendalltau  # a second, which `plan` and `report` do not need

    correlation = kendalltau(*columns)
    return float(correlation.statistic), float(correlation.pvalue)


def _ratio(numerator: Record | None, denominator: Record | None) -> Estimate | None:
    """The ratio of two speeds; unlike `speedup`, it may be of one plan on two machines."""
    if numerator is None or denominator is None:
        return None
    one, other = numerator.outcome, denominator.outcome
    if not (isinstance(one, Measured) and isinstance(other, Measured)):
        return None
    return quotient(one.samples_per_second, other.samples_per_second)


def _other_knobs(first: Plan, second: Plan) -> Iterator[Difference]:
    for name in differing_knobs(first, second):
        yield Difference(name=name, first=getattr(first, name), second=getattr(second, name))


def _keys(
    first: Mapping[str, Any], second: Mapping[str, Any], path: str = ""
) -> Iterator[Difference]:
    """Yields the keys in which two specifications differ, without passwords in addresses."""
    for key in {**first, **second}:
        value, other_value = first.get(key), second.get(key)
        if value == other_value:
            continue
        name = f"{path}{key}"
        if name in _LOCATIONS:
            continue
        if isinstance(value, dict) and isinstance(other_value, dict):
            yield from _keys(value, other_value, f"{name}.")
        elif tuple(name.split(".")) in ADDRESS_KEYS:
            yield Difference(name=name, first=_address(value), second=_address(other_value))
        else:
            yield Difference(name=name, first=value, second=other_value)


def _address(address: str | None) -> str | None:
    return None if address is None else without_password(address)


def _environment(first: Fingerprint | None, second: Fingerprint | None) -> Iterator[Difference]:
    facts, other_facts = _facts(first), _facts(second)
    for name in {**facts, **other_facts}:
        if facts.get(name) != other_facts.get(name):
            yield Difference(name=name, first=facts.get(name), second=other_facts.get(name))


def _facts(fingerprint: Fingerprint | None) -> dict[str, Any]:
    if fingerprint is None:
        return {}
    return {
        "device": fingerprint.device,
        "device_name": fingerprint.device_name,
        "device_memory_gib": round(fingerprint.device_memory_bytes / GIB, 3),
        "hosts": fingerprint.hosts,
        "python": fingerprint.python,
        **dict(fingerprint.versions),
    }
