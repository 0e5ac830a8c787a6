"""The devices that Plimsoll knows, and those that its user measured or described."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from search_spaces.hardware.device import Device
from search_spaces.hardware.files import device_file_text, read_devices
from search_spaces.hardware.names import DeviceError, unknown_device, words_of
from search_spaces.plan import Precision

# in this order: a device may be based on one of a file before its own
_FILES = ("nvidia_servers.yaml", "nvidia_cards.yaml", "amd.yaml", "cpu.yaml")


def find_device(name: str, *, folder: Path | None = None) -> Device:
    """The device that a name means: of the user's files, or else of the catalogue.

    Spelling and order of the words do not matter: driver names such as "NVIDIA H100 80GB HBM3"
    and those of shops and papers ("A100-40GB-SXM") are all known.

    Args:
        name: What the user or the driver calls it.
        folder: Where the user's device files lie; `user_folder()` if not given.

    Raises:
        DeviceError: If nobody knows it; names the nearest.
        SpecError: If a file in the folder has faults.
    """
    own = _user_devices(user_folder() if folder is None else folder)
    found = _matching(name, own) or _matching(name, catalogue())
    if found is None:
        raise unknown_device(name, ((device.name, device.aliases) for device in _all(own)))
    return found


def known_device(name: str) -> Device:
    """The device of the catalogue that a name means, whatever the user measured.

    Raises:
        DeviceError: If the catalogue has none; names the nearest.
    """
    found = _matching(name, catalogue())
    if found is None:
        known = ((device.name, device.aliases) for device in catalogue())
        raise unknown_device(name, known)
    return found


def load_device_file(path: Path) -> tuple[Device, ...]:
    """The devices in a YAML file, in its order; what they are based on comes from the catalogue.

    Raises:
        SpecError: If the file cannot be read or has faults; holds all of them.
    """
    return read_devices(device_file_text(path), source=str(path), lookup=known_device)


def dense_peak_flops(device_name: str, precision: Precision) -> float | None:
    """The data sheet's dense peak in FLOP/s; None if nobody knows the device or it has none."""
    found = _matching(device_name, catalogue())
    if found is None or found.name == "cpu":
        return None
    return found.peak_flops_per_second(precision) or None


@cache
def catalogue() -> tuple[Device, ...]:
    """All devices that ship with Plimsoll."""
    found: list[Device] = []

    def lookup(name: str) -> Device:
        for device in found:
            if device.name == name:
                return device
        raise DeviceError(f"{name!r} stands in no file before")

    folder = files("search_spaces") / "devices"
    for file in _FILES:
        text = (folder / file).read_text(encoding="utf-8")
        found += read_devices(text, source=file, lookup=lookup)
    return tuple(found)


def user_folder() -> Path:
    """Where `plimsoll doctor --probe` writes and `find_device` looks first."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "plimsoll" / "devices"


def _user_devices(folder: Path) -> tuple[Device, ...]:
    paths = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    return tuple(device for path in paths for device in load_device_file(path))


def _all(own: tuple[Device, ...]) -> tuple[Device, ...]:
    return (*own, *catalogue())


def _matching(name: str, devices: Iterable[Device]) -> Device | None:
    """By its own name first, so that no alias of another takes it away."""
    words, candidates = words_of(name), tuple(devices)
    if not words:
        return None
    for device in candidates:
        if words_of(device.name) == words:
            return device
    for device in candidates:
        if any(words_of(alias) == words for alias in device.aliases):
            return device
    return None
