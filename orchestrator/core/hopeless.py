"""Plans that cannot fit, since one that needs no more memory ran out of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from search_spaces.knobs import KNOBS
from search_spaces.outcome import OutOfMemory
from search_spaces.plan import Plan
from search_spaces.record import Record

_GRADED = tuple(knob for knob in KNOBS if knob.memory)
_OTHERS = tuple(knob.name for knob in KNOBS if not knob.memory)


def with_hope(untried: Sequence[Plan], records: Iterable[Record]) -> Sequence[Plan]:
    """The plans that may fit; all of them if none is left, for what is known is no proof.

    A plan is given up if it differs from one that ran out of memory only in knobs of which it
    is known in which direction memory grows, and each of them stands no lower.
    """
    failed: defaultdict[tuple[object, ...], list[tuple[float, ...]]] = defaultdict(list)
    for record in records:
        if isinstance(record.outcome, OutOfMemory) and _is_graded(record.plan, record.outcome):
            failed[_rest(record.plan)].append(_needs(record.plan))

    def hopeless(plan: Plan) -> bool:
        needs = _needs(plan)
        return any(
            all(need >= least for need, least in zip(needs, known, strict=True))
            for known in failed.get(_rest(plan), ())
        )

    return [plan for plan in untried if not hopeless(plan)] or untried


def _is_graded(plan: Plan, outcome: OutOfMemory) -> bool:
    """Not where the host was full of what blocks offload: recomputing fewer takes less of that."""
    return outcome.where == "device" or not plan.checkpoint_offload


def _needs(plan: Plan) -> tuple[float, ...]:
    """The graded knobs, each the larger the more memory."""
    return tuple(knob.memory * getattr(plan, knob.name) for knob in _GRADED)


def _rest(plan: Plan) -> tuple[object, ...]:
    return tuple(getattr(plan, name) for name in _OTHERS)
