"""Comparison of samplers by the trials that they need on fully measured surfaces."""
