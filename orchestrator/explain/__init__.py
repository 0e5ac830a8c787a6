"""Explanations: of the best plan, of one trial, of an untried plan, of two trials or studies."""
