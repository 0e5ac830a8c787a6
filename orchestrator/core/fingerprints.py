"""Differences of fingerprints: what makes measurements of two trials hard to compare."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from orchestrator.core.records import Record
from search_spaces.trial import Fingerprint

# Packages that compute or communicate; others do not change the duration of a step
_PERFORMANCE_PACKAGES = frozenset({"torch", "deepspeed", "transformers", "ray"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A fact in which two fingerprints differ; None: without that package."""

    name: str
    there: str | None
    here: str | None


def differences(theirs: Fingerprint, ours: Fingerprint) -> tuple[Difference, ...]:
    """Returns the device, packages and environment that differ and may change a step's speed.

    A fact that one of them lacks is not a difference, nor is the number of hosts, which plans
    decide.
    """
    return tuple(_differences(theirs, ours))


def _differences(theirs: Fingerprint, ours: Fingerprint) -> Iterator[Difference]:
    if (theirs.device, theirs.device_name) != (ours.device, ours.device_name):
        yield Difference(name="device", there=theirs.device_name, here=ours.device_name)
    there, here = dict(theirs.versions), dict(ours.versions)
    for name in sorted((there.keys() | here.keys()) & _PERFORMANCE_PACKAGES):
        if there.get(name) != here.get(name):
            yield Difference(name=name, there=there.get(name), here=here.get(name))
    there, here = dict(theirs.environment), dict(ours.environment)
    for name in sorted(there.keys() & here.keys()):
        if there[name] != here[name]:
            yield Difference(name=name, there=there[name], here=here[name])


def is_other_group(theirs: Fingerprint, ours: Fingerprint) -> bool:
    """Returns True if the fingerprints differ in more than facts that one of them lacks."""
    known = replace(theirs, environment=()) == replace(ours, environment=())
    return not known or bool(differences(theirs, ours))


def alike(records: Iterable[Record], ours: Fingerprint | None) -> tuple[Record, ...]:
    """Returns the records with a fingerprint that does not differ from ours; None: all of those."""
    return tuple(
        record
        for record in records
        if record.fingerprint is not None
        and (ours is None or not differences(record.fingerprint, ours))
    )


def differing(
    records: Iterable[Record], ours: Fingerprint
) -> tuple[tuple[Record, ...], tuple[Difference, ...]]:
    """Returns the records whose fingerprint differs from ours, and all that differs in them."""
    found: dict[Difference, None] = {}
    others = []
    for record in records:
        if record.fingerprint and (changes := differences(record.fingerprint, ours)):
            others.append(record)
            found |= dict.fromkeys(changes)
    return tuple(others), tuple(found)
