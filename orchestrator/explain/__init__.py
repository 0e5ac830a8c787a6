"""Explanations: of the best plan, of one trial, or of an untried plan."""
