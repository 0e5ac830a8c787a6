"""How far what was measured elsewhere holds here: from fingerprints alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from search_spaces.trial import Fingerprint, Record

# Deviations of the logarithm that all trials of another study may be off by, together
SAME = 0.02  # the same machine and software on another day
OTHER_SOFTWARE = 0.1
OTHER_HOSTS = 0.1
# packages that compute or communicate; the others do not change what a step takes
_MATTERS = frozenset({"torch", "deepspeed", "transformers", "ray"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStudy:
    """Another study of the same model, data and training."""

    name: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredTrial:
    """A record of another study, and how far it may be off here, as a deviation of logarithms."""

    study: str
    record: Record
    transfer_std: float


def transferred_trials(
    studies: Iterable[EarlierStudy], ours: Fingerprint
) -> tuple[TransferredTrial, ...]:
    """What holds here of what they measured."""
    return tuple(
        TransferredTrial(study=study.name, record=record, transfer_std=off)
        for study in studies
        for record in study.records
        if (off := transfer_std(record.fingerprint, ours)) is not None
    )


def sources(studies: Iterable[EarlierStudy], ours: Fingerprint) -> tuple[str, ...]:
    """Which studies are evidence here and how far they are believed, a sentence each."""
    return tuple(sentence for study in studies if (sentence := _source(study, ours)))


def _source(study: EarlierStudy, ours: Fingerprint) -> str:
    taken = transferred_trials([study], ours)
    if not taken:
        return f"study {study.name} measured the same job on another device: it is no evidence here"
    other = sorted({word for lesson in taken for word in _different(lesson.record, ours)})
    trials = f"{len(taken)} trial" + "s" * (len(taken) > 1)
    most = max(lesson.transfer_std for lesson in taken)
    beside = f", discounted for {', '.join(other)}" if other else ""
    return f"{trials} of study {study.name} are evidence too, to {100 * most:.0f} %{beside}"


def _different(record: Record, ours: Fingerprint) -> Sequence[str]:
    return differences(record.fingerprint, ours) if record.fingerprint else ()


def transfer_std(theirs: Fingerprint | None, ours: Fingerprint) -> float | None:
    """The deviation by which measurements there may be off here; None: they say nothing here.

    Devices must have the same name: what another one takes is for forecasts to tell.
    """
    if theirs is None or (theirs.device, theirs.device_name) != (ours.device, ours.device_name):
        return None
    variance = SAME**2
    if _versions(theirs) != _versions(ours):
        variance += OTHER_SOFTWARE**2
    if theirs.hosts != ours.hosts:
        variance += OTHER_HOSTS**2
    return float(variance**0.5)


def differences(theirs: Fingerprint, ours: Fingerprint) -> tuple[str, ...]:
    """What is not the same, in words: `torch 2.12.0`, `2 hosts`."""
    there, here = _versions(theirs), _versions(ours)
    told = [
        f"{name} {there.get(name, 'missing')}"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if theirs.hosts != ours.hosts:
        told.append(f"{theirs.hosts} hosts")
    return tuple(told)


def _versions(fingerprint: Fingerprint) -> dict[str, str]:
    return {name: version for name, version in fingerprint.versions if name in _MATTERS}
