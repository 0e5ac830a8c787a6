"""Real sweeps under injected faults: `python -m benchmarks.chaos`, `make chaos`."""
