"""Weights that depend on the seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws of torch's CPU generator follow from `seed`; afterwards it goes on as before.

    Only the CPU's generator, since models are built there: `torch.manual_seed` would also
    reset those of CUDA devices, which `fork_rng` without devices does not give back.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
