"""Memory of a rank: limits, peaks, residuals, and out-of-memory errors."""
