"""Knobs: their declarations, the values searched by default, and their documentation."""
