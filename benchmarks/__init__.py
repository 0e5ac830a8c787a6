"""Programs that measure Plimsoll itself; their output is kept under `benchmarks/results/`."""
