"""Decisions of a sweep as pure functions: events come in, state and instructions go out.

No module here imports Ray, Optuna or MLflow, does I/O, or reads the clock.
"""
