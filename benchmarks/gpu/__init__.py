"""The validation on a real GPU: `half_hour` runs its steps, `judge` compares with forecasts."""
