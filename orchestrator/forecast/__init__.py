"""Forecasts of speed and memory of plans that have not run, and the planner built on them."""
