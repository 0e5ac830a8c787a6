"""What do we try next, and what did we learn? Ray, Optuna and MLflow, each behind one module."""
