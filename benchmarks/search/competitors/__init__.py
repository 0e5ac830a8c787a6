"""Competitors that search a surface."""
