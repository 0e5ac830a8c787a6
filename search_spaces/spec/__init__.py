"""Specifications: what a user asks for, loaded from YAML or refused with every fault."""
