"""Settings that a plan becomes: of engines and processes, for the worker and every export."""
