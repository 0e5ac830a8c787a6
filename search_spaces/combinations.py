"""Every choice of values, knob after knob: counted without being made, then made one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from search_spaces.domains import Choice, Chosen, Values
from search_spaces.knobs import KNOBS
from search_spaces.rules.base import Surroundings

_Key = tuple[Any, ...]


class Combinations:
    """A tree and not a product: what a knob offers may depend on those before it.

    What lies below a point depends on a few of the knobs above it (`Knob.looks_at`), so that
    counting looks at each such case once, however many points share it.
    """

    def __init__(self, around: Surroundings, workers: int) -> None:
        """Counts them.

        Args:
            around: The spec and what is known of model and cluster.
            workers: Ranks that the sweep uses where `space.data` names no others.
        """
        self._around = around
        self._workers = workers
        self._offered: dict[_Key, Values] = {}
        self._counted: dict[_Key, int] = {}
        self._met: dict[str, dict[Any, None]] = {knob.name: {} for knob in KNOBS}
        self.count = self._count(0, {})

    @property
    def domains(self) -> dict[str, Values]:
        """The values of each knob, in the order in which they are met."""
        return {name: tuple(values) for name, values in self._met.items()}

    def __iter__(self) -> Iterator[Chosen]:
        """All of them, each a view that the next one changes."""
        return self._grow(0, {})

    def _grow(self, level: int, chosen: dict[str, Any]) -> Iterator[Chosen]:
        if level == len(KNOBS):
            yield chosen
            return
        name = KNOBS[level].name
        for value in self._values(level, chosen):
            chosen[name] = value
            yield from self._grow(level + 1, chosen)

    def _count(self, level: int, chosen: Chosen) -> int:
        if level == len(KNOBS):
            return 1
        key = (level, *(chosen[name] for name in _BELOW[level]))
        if key not in self._counted:
            name, values = KNOBS[level].name, self._values(level, chosen)
            self._met[name].update(dict.fromkeys(values))
            # where nothing below looks at this knob, one of its values stands for all
            shared = name not in _BELOW[level + 1]
            counts = (
                self._count(level + 1, {**chosen, name: value})
                for value in (values[:1] if shared else values)
            )
            self._counted[key] = sum(counts) * (len(values) if shared else 1)
        return self._counted[key]

    def _values(self, level: int, chosen: Chosen) -> Values:
        knob = KNOBS[level]
        key = (level, *[chosen[name] for name in knob.looks_at])
        values = self._offered.get(key)
        if values is None:
            around = self._around
            choice = Choice(
                spec=around.spec,
                model=around.model,
                cluster=around.cluster,
                workers=self._workers,
                chosen={name: chosen[name] for name in knob.looks_at},
            )
            values = self._offered[key] = knob.values(choice)
        return values


def _below(level: int) -> tuple[str, ...]:
    """The knobs above a level that those from it on look at."""
    above = {knob.name for knob in KNOBS[:level]}
    looked_at = {name for knob in KNOBS[level:] for name in knob.looks_at}
    return tuple(sorted(above & looked_at))


_BELOW = tuple(_below(level) for level in range(len(KNOBS) + 1))
