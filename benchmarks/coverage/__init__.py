"""Coverage of a trial's confidence interval, simulated."""
