"""Data: samples of tokens, their order over the steps, and their batches."""
