"""Trials on real ranks: the only package that imports torch and transformers."""
