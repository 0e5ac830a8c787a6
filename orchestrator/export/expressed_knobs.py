"""Declarations of the knobs that an export format expresses; other knobs must be at their default.

A format that does not know a knob declares nothing of it, so a plan that needs the knob is refused
and never exported without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from typing import Any

from search_spaces.plan import Engine, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The values of a knob that a format expresses, and the reason why it expresses no others."""

    knob: str
    values: tuple[Any, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressedKnobs:
    """Knobs that a format expresses in plans of an engine.

    Attributes:
        engine: The engine of the plans.
        written: Knobs that the files, the command or its environment set.
        in_caveats: Knobs that a caveat leaves to the user, by value, whether written too or not.
        limits: Knobs of which the format expresses some values only.
    """

    engine: Engine
    written: tuple[str, ...]
    in_caveats: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        limited = tuple(limit.knob for limit in self.limits)
        unknown = {*self.declared, *limited} - {field.name for field in fields(Plan)}
        assert not unknown, f"{sorted(unknown)} are not knobs of a plan"
        for names in (self.written, self.in_caveats, limited):
            assert len(set(names)) == len(names), f"a knob is declared twice: {names}"

    @property
    def declared(self) -> frozenset[str]:
        """The knobs that the format expresses, whole or in part."""
        return frozenset({"engine", *self.written, *self.in_caveats})

    def refusals(self, plan: Plan) -> Iterator[str]:
        """Yields a sentence for each knob of a plan of the engine that the format cannot express.

        Each starts with the knob and its value: `tensor is 2: splitting blocks takes ...`.
        """
        limits = {limit.knob: limit for limit in self.limits}
        for field in fields(plan):
            value, limit = getattr(plan, field.name), limits.get(field.name)
            if self._expresses(field, value, limit):
                continue
            words = f"{field.name} is {str(value).lower() if isinstance(value, bool) else value}"
            yield words if limit is None else f"{words}: {limit.reason}"

    def _expresses(self, field: Field[Any], value: Any, limit: Limit | None) -> bool:
        if limit is not None:
            return value in limit.values
        return field.name in self.declared or value == field.default
