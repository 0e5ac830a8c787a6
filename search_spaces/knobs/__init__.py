"""Knobs: what each is, which values are searched by default, and its documentation."""
