"""Costs of plans, forecast from a footprint and a machine: memory and time, as arithmetic."""
