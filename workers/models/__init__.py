"""Models: facts from a build without memory, and models built for training."""
