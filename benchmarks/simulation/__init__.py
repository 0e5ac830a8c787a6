"""Deterministic simulation of sweeps: the real controller, study and samplers in virtual time.

A seed draws a job, a cluster and its faults. Nothing here waits or uses Ray, so that thousands of
sweeps run in a minute, and each violation can be run again from its seed.
"""
