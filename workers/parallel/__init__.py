"""Parallelism applied to a model from outside: the model does not know how it is split."""
