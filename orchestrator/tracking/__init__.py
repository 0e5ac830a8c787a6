"""Callbacks of a sweep: MLflow, the event log and metrics; mlflow is imported on first use."""
