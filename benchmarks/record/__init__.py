"""Recordings: every legal plan of a space, measured several times, as one table."""
