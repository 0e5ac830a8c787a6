"""Tracing: footprints of models, from one training step without memory."""
