"""Plans that can be tried and their forecasts: pure values, no torch, ray, optuna or mlflow."""
