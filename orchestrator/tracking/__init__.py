"""Sweep callbacks: MLflow, the event log, metrics. Importing mlflow takes seconds, so it is late."""
