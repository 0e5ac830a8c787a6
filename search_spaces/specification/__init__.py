"""Specifications: schema, loading from YAML with all faults at once, and generated references."""
