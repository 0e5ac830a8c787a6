"""Search for the longest sequence that fits."""

from collections.abc import Mapping

from search_spaces.specification.schema import DataSpec, SweepSpec

LEAST_TOKENS, MOST_TOKENS = 256, 2**24
_GAP = 0.25  # of the longest length that fits: the next one that was tried is no farther
_MULTIPLE = 64  # of lengths, so that ranks can divide their tokens


def next_length(fits: Mapping[int, bool], first: int, growth: float = 2.0) -> int | None:
    """Returns the next sequence length to try; None if the longest is known to within a quarter.

    Longer ones come while plans fit, then shorter ones until one does, then those between.

    Args:
        fits: Whether a plan fits, by tokens of the lengths that were tried.
        first: Tokens of the first length to try.
        growth: Ratio of one length to the next, above 1.
    """
    if not fits:
        return first
    longest = max((tokens for tokens, fit in fits.items() if fit), default=0)
    shortest = min((tokens for tokens, fit in fits.items() if not fit), default=0)
    if not shortest:
        tokens = max(_rounded(longest * growth + _MULTIPLE - 1), LEAST_TOKENS)
    elif not longest:
        tokens = _rounded(shortest / growth)
    elif shortest - longest > _GAP * longest:
        tokens = _rounded((longest + shortest) / 2)
    else:
        return None
    return None if tokens in fits or not LEAST_TOKENS <= tokens <= MOST_TOKENS else tokens


def _rounded(tokens: float) -> int:
    return int(tokens) // _MULTIPLE * _MULTIPLE


def at_length(spec: SweepSpec, tokens: int) -> SweepSpec:
    """Returns the specification with samples of this many random tokens each."""
    train = spec.train.model_copy(update={"sequence_length": tokens})
    objective = spec.objective
    if objective.metric == "sequence_length":  # of one length, the fastest plan is the best
        objective = objective.model_copy(update={"metric": "samples_per_second"})
    return spec.model_copy(update={"train": train, "data": DataSpec(), "objective": objective})
