"""Forecasts: speed and memory of plans that were not run, and what follows from them."""
