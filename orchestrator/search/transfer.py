"""Transfer of trials from other studies: how uncertain they are here, by their fingerprints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from search_spaces.trial import Fingerprint, Record

# Standard deviations, in logarithms, of an error that all trials of another study share
SAME_MACHINE_STD = 0.02  # same machine and software, another day
OTHER_SOFTWARE_STD = 0.1
OTHER_HOSTS_STD = 0.1
# Packages that compute or communicate; others do not change the duration of a step
_PERFORMANCE_PACKAGES = frozenset({"torch", "deepspeed", "transformers", "ray"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStudy:
    """Another study of the same model, data and training."""

    name: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredTrial:
    """A record of another study, with its uncertainty here (standard deviation of logarithms)."""

    study: str
    record: Record
    transfer_std: float


def transferred_trials(
    studies: Iterable[EarlierStudy], ours: Fingerprint
) -> tuple[TransferredTrial, ...]:
    """Returns the trials of other studies that apply to this hardware and software."""
    return tuple(
        TransferredTrial(study=study.name, record=record, transfer_std=std)
        for study in studies
        for record in study.records
        if (std := transfer_std(record.fingerprint, ours)) is not None
    )


def transfer_notes(studies: Iterable[EarlierStudy], ours: Fingerprint) -> tuple[str, ...]:
    """Describes, in a sentence for each study, which trials are transferred and how uncertain."""
    return tuple(sentence for study in studies if (sentence := _source(study, ours)))


def _source(study: EarlierStudy, ours: Fingerprint) -> str:
    trials = transferred_trials([study], ours)
    if not trials:
        return f"no trials transferred from study {study.name}: it ran on another device"
    changes = sorted({change for trial in trials for change in _changes(trial.record, ours)})
    count = f"{len(trials)} trial" + "s" * (len(trials) > 1)
    largest = max(trial.transfer_std for trial in trials)
    detail = f" ({', '.join(changes)})" if changes else ""
    return f"{count} transferred from study {study.name}, uncertainty {100 * largest:.0f} %{detail}"


def _changes(record: Record, ours: Fingerprint) -> Sequence[str]:
    return differences(record.fingerprint, ours) if record.fingerprint else ()


def transfer_std(theirs: Fingerprint | None, ours: Fingerprint) -> float | None:
    """Returns the uncertainty that a measurement elsewhere has here, None if it does not apply.

    Devices must have the same name: only forecasts predict from one device to another.

    Returns:
        The standard deviation of the logarithm.
    """
    if theirs is None or (theirs.device, theirs.device_name) != (ours.device, ours.device_name):
        return None
    variance = SAME_MACHINE_STD**2
    if _versions(theirs) != _versions(ours):
        variance += OTHER_SOFTWARE_STD**2
    if theirs.hosts != ours.hosts:
        variance += OTHER_HOSTS_STD**2
    return float(variance**0.5)


def differences(theirs: Fingerprint, ours: Fingerprint) -> tuple[str, ...]:
    """Lists what differs there, in words: `torch 2.12.0`, `2 hosts`."""
    other_versions, own_versions = _versions(theirs), _versions(ours)
    changes = [
        f"{name} {other_versions.get(name, 'missing')}"
        for name in sorted(other_versions.keys() | own_versions.keys())
        if other_versions.get(name) != own_versions.get(name)
    ]
    if theirs.hosts != ours.hosts:
        changes.append(f"{theirs.hosts} hosts")
    return tuple(changes)


def _versions(fingerprint: Fingerprint) -> dict[str, str]:
    return {
        name: version for name, version in fingerprint.versions if name in _PERFORMANCE_PACKAGES
    }
