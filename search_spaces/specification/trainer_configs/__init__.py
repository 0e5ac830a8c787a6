"""Configurations of other trainers, turned into specifications; nothing in them is run."""
