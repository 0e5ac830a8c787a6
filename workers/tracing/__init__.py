"""The machinery of `workers.tracing.trace`: one step without memory, and what it tells."""
