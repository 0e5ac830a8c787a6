"""Catalogue of devices: those shipped with Plimsoll, and the user's own."""

import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from search_spaces.hardware.device import Device
from search_spaces.hardware.files import read_devices
from search_spaces.hardware.mig import instances_of
from search_spaces.hardware.names import DeviceError, unknown_device, words_of
from search_spaces.specification.yaml_reader import yaml_text

# in this order: a device may be based on one in an earlier file
DEVICE_FILES = ("nvidia_servers.yaml", "nvidia_cards.yaml", "amd.yaml", "tpu.yaml", "cpu.yaml")


def find_device(name: str) -> Device:
    """Returns the device with a name, from the user's files or else the catalogue.

    Spelling and word order do not matter: names of drivers ("NVIDIA H100 80GB HBM3"), shops and
    papers ("A100-40GB-SXM") are all recognized.

    Args:
        name: Name as the user or the driver writes it.

    Raises:
        DeviceError: If the device is unknown; names the closest ones.
        SpecError: If a file in `user_folder()` has faults.
    """
    paths = sorted(user_folder().glob("*.yaml"))
    user_devices = tuple(device for path in paths for device in load_device_file(path))
    return _matching(name, user_devices) or known_device(name, beside=user_devices)


def known_device(name: str, *, beside: tuple[Device, ...] = ()) -> Device:
    """Returns the device with a name from the catalogue, without the user's files.

    Raises:
        DeviceError: If the catalogue does not have it; names the closest ones, and those `beside`.
    """
    if (device := _matching(name, catalogue())) is not None:
        return device
    raise unknown_device(name, ((each.name, each.aliases) for each in (*beside, *catalogue())))


def load_device_file(path: Path) -> tuple[Device, ...]:
    """Loads the devices in a YAML file, in its order; `based_on` refers to the catalogue.

    Raises:
        SpecError: If the file cannot be read or has faults; holds all of them.
    """
    text = yaml_text(path, kind="a device file", command="plimsoll doctor --probe")
    return read_devices(text, source=str(path), lookup=known_device)


@cache
def catalogue() -> tuple[Device, ...]:
    """Returns all devices that ship with Plimsoll."""
    devices: list[Device] = []

    def lookup(name: str) -> Device:
        for device in devices:
            if device.name == name:
                return device
        raise DeviceError(f"{name!r} is not in an earlier file")

    folder = files("search_spaces") / "devices"
    for file in DEVICE_FILES:
        text = (folder / file).read_text(encoding="utf-8")
        devices += read_devices(text, source=file, lookup=lookup)
    return (*devices, *(instance for board in devices for instance in instances_of(board)))


def user_folder() -> Path:
    """Returns the folder that `plimsoll doctor --probe` writes to and `find_device` reads first."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "plimsoll" / "devices"


def _matching(name: str, devices: tuple[Device, ...]) -> Device | None:
    """Returns the device with this name, or else the one with this alias."""
    words = words_of(name)
    spellings = [(words_of(each.name), each) for each in devices]
    spellings += [(words_of(alias), each) for each in devices for alias in each.aliases]
    return next((each for spelling, each in spellings if words and spelling == words), None)
