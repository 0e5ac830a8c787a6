"""Which candidate to measure next, from a forecast and from what was measured: arithmetic alone."""
