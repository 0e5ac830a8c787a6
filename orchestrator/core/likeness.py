"""How far what was measured elsewhere holds here: from fingerprints alone."""

from __future__ import annotations

from search_spaces.record import Fingerprint

# Deviations of the logarithm that all trials of another study may be off by, together
SAME = 0.02  # the same machine and software on another day
OTHER_SOFTWARE = 0.1
OTHER_HOSTS = 0.1
# packages that compute or communicate; the others do not change what a step takes
_MATTERS = frozenset({"torch", "deepspeed", "transformers", "ray"})


def doubt(theirs: Fingerprint | None, ours: Fingerprint) -> float | None:
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
