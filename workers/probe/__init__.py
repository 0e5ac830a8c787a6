"""Measurements of the machine: rates of the device, its links, the host and a drive."""
