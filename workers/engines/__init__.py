"""Engines: train a model under its plan, one optimizer step at a time."""
