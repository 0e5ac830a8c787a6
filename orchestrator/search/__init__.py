"""Samplers: they choose the next plan to measure from forecasts and records. Plain arithmetic."""
