"""Engines: a model with its plan applied, one optimizer step at a time."""
