"""Settings of engines and processes, rendered from a plan for the worker and every export."""
