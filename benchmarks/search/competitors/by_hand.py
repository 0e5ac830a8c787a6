"""Search by hand, as engineers do it: the largest micro-batch that fits, of each setting."""

from __future__ import annotations

import numpy as np

from benchmarks.search.competitors.base import Strategy
from benchmarks.search.competitors.layout import Layout
from benchmarks.search.surfaces import Surface


def largest_micro_batch(surface: Surface, random: np.random.Generator) -> Strategy:
    """Grows the micro-batch until it runs out of memory, then backs off; setting by setting.

    Stages come from the one that shards least, the settings of a stage in a random order. Where a
    setting ran out, micro-batches between the last that ran and the first that did not are tried
    from the largest, until one runs. A surface without micro-batch is tried setting by setting,
    one without stage as if it had one.
    """
    groups = [*Layout.of(surface).groups().items()]
    order = sorted(random.permutation(len(groups)).tolist(), key=lambda place: groups[place][0][0])
    for place in order:
        yield from _grown(groups[place][1])


def _grown(rows: dict[float, int]) -> Strategy:
    offered = [*rows]
    ran, wanted = -1, 0  # places among those offered
    while wanted < len(offered):
        trial = yield rows[offered[wanted]]
        if trial.rate is None:
            for smaller in range(wanted - 1, ran, -1):
                trial = yield rows[offered[smaller]]
                if trial.rate is not None:
                    return
            return
        ran = wanted
        doubled = (at for at in range(ran + 1, len(offered)) if offered[at] >= 2 * offered[ran])
        largest = len(offered) - 1
        wanted = next(doubled, largest if ran < largest else len(offered))
