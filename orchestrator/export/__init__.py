"""Exports: a plan as files that another trainer starts."""
