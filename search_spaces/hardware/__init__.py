"""Devices: the catalogue of known ones, and what users add or measure."""
