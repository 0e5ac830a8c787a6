"""Costs of plans: memory and time, calculated from a model's footprint and a device."""
