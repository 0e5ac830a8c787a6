"""Measurements of the machine: what the device, its links, host and drive can do."""
