"""Transfer of trials from other studies: how uncertain they are here, by their fingerprints."""

from dataclasses import dataclass

from orchestrator.core.fingerprints import differences
from orchestrator.core.notes import TrialsTransferred
from orchestrator.core.records import Record
from search_spaces.trial import Fingerprint

# Standard deviations, in logarithms, of an error that all trials of another study share
SAME_MACHINE_STD = 0.02  # same machine and software, another day
OTHER_SOFTWARE_STD = 0.1
OTHER_HOSTS_STD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStudy:
    """Another study of the same model, data and training."""

    name: str
    records: tuple[Record, ...]


def transferred_records(study: EarlierStudy, ours: Fingerprint) -> list[tuple[Record, float]]:
    """Returns the records of another study that apply to this hardware, each with its uncertainty.

    That is the standard deviation of a logarithm.
    """
    uncertain = ((record, transfer_std(record.fingerprint, ours)) for record in study.records)
    return [(record, std) for record, std in uncertain if std is not None]


def transfer_note(study: EarlierStudy, ours: Fingerprint) -> TrialsTransferred:
    """Returns how many trials of another study are transferred, and how uncertain they are."""
    records = transferred_records(study, ours)
    theirs = {record.fingerprint for record, _ in records if record.fingerprint}
    changes = {change for fingerprint in theirs for change in differences(fingerprint, ours)}
    return TrialsTransferred(
        study=study.name,
        trials=len(records),
        std=max((std for _, std in records), default=0.0),
        differences=tuple(sorted(changes, key=str)),
        hosts=tuple(sorted({one.hosts for one in theirs} - {ours.hosts})),
    )


def transfer_std(theirs: Fingerprint | None, ours: Fingerprint) -> float | None:
    """Returns the uncertainty that a measurement elsewhere has here, None if it does not apply.

    Devices must have the same name: only forecasts predict from one device to another.

    Returns:
        The standard deviation of the logarithm.
    """
    if theirs is None or (theirs.device, theirs.device_name) != (ours.device, ours.device_name):
        return None
    variance = SAME_MACHINE_STD**2
    if differences(theirs, ours):
        variance += OTHER_SOFTWARE_STD**2
    if theirs.hosts != ours.hosts:
        variance += OTHER_HOSTS_STD**2
    return float(variance**0.5)
