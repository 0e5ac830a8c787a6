"""Memory of a rank: limits, peaks, what was given back, and errors that say it ran out."""
