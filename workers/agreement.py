"""One outcome out of what each rank says: a failure is everybody's, and its cause counts.

Plain functions of values; how the ranks exchange them is `workers.ranks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search_spaces.outcome import Crashed, Diverged, Measured, Outcome, OutOfMemory


def agree(endings: Sequence[Outcome]) -> Outcome:
    """The outcome of a trial from the endings of its ranks, in the order of ranks.

    When one rank fails, its peers fail too, in the collective in which they wait for it. So a
    cause goes before what followed from it: out of memory, then a loss that is no number, then
    any crash of a rank's own, then a broken collective.
    """
    for choose in (_out_of_memory, _diverged, _crashed, _other):
        if outcome := choose(endings):
            return outcome
    return _measured([ending for ending in endings if isinstance(ending, Measured)])


def _out_of_memory(endings: Sequence[Outcome]) -> Outcome | None:
    """The rank that wanted most; what was left behind is the largest of all ranks."""
    found = [ending for ending in endings if isinstance(ending, OutOfMemory)]
    if not found:
        return None
    worst = max(found, key=lambda ending: ending.wanted_bytes or 0)
    if worst.costs is None:
        return worst
    return replace(worst, costs=replace(worst.costs, residual_bytes=_residual(endings)))


def _diverged(endings: Sequence[Outcome]) -> Outcome | None:
    return next((ending for ending in endings if isinstance(ending, Diverged)), None)


def _crashed(endings: Sequence[Outcome]) -> Outcome | None:
    found = [ending for ending in endings if isinstance(ending, Crashed)]
    return min(found, key=lambda ending: ending.cause == "collective", default=None)


def _other(endings: Sequence[Outcome]) -> Outcome | None:
    return next((ending for ending in endings if not isinstance(ending, Measured)), None)


def _measured(endings: Sequence[Measured]) -> Measured:
    """Times of rank 0, memory of the rank closest to its limit, the slowest clock's reasons."""
    first = endings[0]
    throttled = {reason for ending in endings for reason in ending.conditions.throttled}
    return replace(
        first,
        memory=max((ending.memory for ending in endings), key=lambda memory: memory.share),
        conditions=replace(first.conditions, throttled=tuple(sorted(throttled))),
        costs=replace(first.costs, residual_bytes=_residual(endings)),
    )


def _residual(endings: Sequence[Outcome]) -> int:
    kinds = (Measured, OutOfMemory, Diverged, Crashed)
    return max(
        (
            ending.costs.residual_bytes
            for ending in endings
            if isinstance(ending, kinds) and ending.costs is not None
        ),
        default=0,
    )
