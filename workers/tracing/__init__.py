"""The machinery of `workers.trace`: one step without memory, and what it tells."""
