"""Which tokens a masked language model has to guess."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.data.padding import IGNORED

_MASKED, _TO_MASK, _TO_RANDOM = 0.15, 0.8, 0.1  # Devlin et al. 2018, arXiv:1810.04805, 3.1

Tokens = NDArray[np.int32]


def masked_count(length: int) -> int:
    """How many of a sample's tokens are to be guessed: 15 %, at least one."""
    return max(1, round(_MASKED * length))


def mask(
    tokens: Tokens, *, number: int, seed: int, vocab_size: int, mask_token_id: int
) -> tuple[Tokens, Tokens]:
    """The tokens with some hidden, and the labels: the hidden tokens, ignored elsewhere.

    Of the tokens to guess, 80 % become the mask token, 10 % a random one and 10 % stay. What
    is hidden depends on the seed and the sample's number alone, hence on no layout; the count
    on its length alone, so that a step's targets are known without drawing.
    """
    generator = np.random.default_rng([seed, number])
    places = generator.choice(len(tokens), size=masked_count(len(tokens)), replace=False)
    fates = generator.random(len(places))
    labels = np.full_like(tokens, IGNORED)
    labels[places] = tokens[places]
    hidden = tokens.copy()
    hidden[places[fates < _TO_MASK]] = mask_token_id
    replaced = places[(fates >= _TO_MASK) & (fates < _TO_MASK + _TO_RANDOM)]
    hidden[replaced] = generator.integers(0, vocab_size, size=len(replaced))
    return hidden, labels
