"""Measurements of whole optimizer steps: speed, its confidence, and machine conditions."""
