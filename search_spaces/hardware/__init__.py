"""Devices: the catalogue of known ones, and files of measured or described ones."""

from search_spaces.hardware.catalogue import (
    catalogue,
    dense_peak_flops,
    find_device,
    known_device,
    load_device_file,
    user_folder,
)
from search_spaces.hardware.device import Device
from search_spaces.hardware.files import device_to_yaml
from search_spaces.hardware.names import DeviceError

__all__ = [
    "Device",
    "DeviceError",
    "catalogue",
    "dense_peak_flops",
    "device_to_yaml",
    "find_device",
    "known_device",
    "load_device_file",
    "user_folder",
]
