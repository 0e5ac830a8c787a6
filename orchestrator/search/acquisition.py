"""What a trial of a candidate is worth, by what is believed of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from orchestrator.search.gaussian import Numbers

_SURE = 0.9  # P(fits) that the first trials have, where there are such candidates
_CAUTION = 2.0  # power of P(fits): an out-of-memory trial costs more than its seconds
LEAST_FITS = 0.5  # what is less probable counts as unlikely
_LAST = 0.1  # of what an unlikely one is worth
_NOTHING = 1e-5  # what will not fit is not tried for less, while there is anything else


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """Of candidates: what is wanted of them, and the chances that they fit and reach the least."""

    mean: Numbers
    deviation: Numbers
    fits: Numbers
    reach: Numbers

    @property
    def chance(self) -> Numbers:
        """That a candidate is an answer."""
        return self.fits * self.reach


def promise(seen: Judged) -> Numbers:
    """What candidates are compared by while there is nothing to compare with.

    What is surely feasible and fast: it shows most of what memory is left, without running out.
    """
    hope = np.exp(seen.mean - seen.mean.max()) * seen.reach
    promise: Numbers = hope * seen.fits**_CAUTION + (seen.fits >= _SURE)
    return promise


def acceptable(gained: Numbers, fits: Numbers) -> Numbers:
    """What gains are worth by the chance to fit: what will not is tried when nothing else pays."""
    unlikely = fits < LEAST_FITS
    worth: Numbers = gained * fits**_CAUTION * np.where(unlikely, _LAST, 1.0)
    if unlikely.all():
        return worth
    return np.where(unlikely & (worth < _NOTHING), -1.0, worth)


def improvement(mean: Numbers, deviation: Numbers, best: float) -> Numbers:
    """What is expected to be gained of the logarithm over the best (Jones et al. 1998)."""
    place = (mean - best) / deviation
    density = np.exp(-0.5 * place**2) / np.sqrt(2 * np.pi)
    found: Numbers = deviation * (place * ndtr(place) + density)
    return found
