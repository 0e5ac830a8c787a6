"""The sweep controller: search, trials, records and reports, on Ray, Optuna and MLflow."""
