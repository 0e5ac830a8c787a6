"""Data: samples of tokens, the order in which steps take them, and batches made of them."""
