"""What could be tried, and what do we expect? Pure values: no torch, ray, optuna or mlflow."""
