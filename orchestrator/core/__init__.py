"""What is decided in a sweep, as plain functions: events come in, state and instructions go out.

Nothing here knows Ray, Optuna or MLflow, does I/O, or asks what time it is.
"""
